"""The joint graph in the form every later stage reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.ops import tensor


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A normalised joint graph: dead code and common subexpressions removed, regions told apart.

    ``forward`` and ``backward`` hold call nodes only, in program order.
    """

    gm: GraphModule
    primals: tuple[Node, ...]
    tangents: tuple[Node, ...]
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    forward_outputs: tuple[Node | None, ...]
    backward_outputs: tuple[Node | None, ...]
    static_input_indices: tuple[int, ...]
    mutated_inputs: frozenset[Node]
    """Inputs whose contents the update overwrites: a later replay would read something else."""

    @property
    def num_forward_outputs(self) -> int:
        """How many outputs of the joint graph belong to the forward."""
        return len(self.forward_outputs)

    @property
    def static_inputs(self) -> tuple[Node, ...]:
        """Parameters and buffers."""
        return tuple(self.primals[index] for index in self.static_input_indices)

    def held_storages(self) -> frozenset[int]:
        """Storages alive whatever is decided: inputs, and outputs the caller holds."""
        nodes = [*self.primals, *self.tangents, *(n for n in self.forward_outputs if n is not None)]
        keys = (compat.storage_key(node) for node in nodes if tensor(node) is not None)
        return frozenset(key for key in keys if key is not None)


def normalise(
    gm: GraphModule, *, num_forward_outputs: int, static_input_indices: Sequence[int]
) -> JointGraph:
    """Clean the joint graph in place and describe it."""
    compat.cse(gm)
    nodes = list(gm.graph.nodes)
    end = compat.forward_region_end(nodes)
    forward_side = [node for node in nodes[: end + 1] if not compat.is_tangent(node)]
    primals = tuple(node for node in forward_side if node.op == "placeholder")
    outputs = list(next(node for node in nodes if node.op == "output").args[0])
    flat = [out if isinstance(out, Node) else None for out in outputs]
    return JointGraph(
        gm=gm,
        primals=primals,
        tangents=tuple(n for n in nodes if n.op == "placeholder" and compat.is_tangent(n)),
        forward=tuple(node for node in forward_side if node.op == "call_function"),
        backward=tuple(node for node in nodes[end + 1 :] if node.op == "call_function"),
        forward_outputs=tuple(flat[:num_forward_outputs]),
        backward_outputs=tuple(flat[num_forward_outputs:]),
        static_input_indices=tuple(static_input_indices),
        mutated_inputs=_mutated_inputs(gm, primals),
    )


def _mutated_inputs(gm: GraphModule, primals: Sequence[Node]) -> frozenset[Node]:
    indices = compat.mutated_input_indices()
    found = {primals[index] for index in indices if index < len(primals)}
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.copy_.default and node.args[0] in primals:
            found.add(node.args[0])
    return frozenset(found)
