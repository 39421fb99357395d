"""The joint graph in the form every later stage reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx import GraphModule, Node

from hilore_planner.errors import RegionError
from hilore_planner.passes import compat
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.emit import fake_mode_of
from hilore_planner.passes.masks import hoist_masks
from hilore_planner.passes.ops import op_name, tensor

CheckpointTags = Literal["override", "respect", "error"]


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
    tags: dict[Node, str]
    """What the program's own checkpointing says of a forward node: ``store`` or ``recompute``."""
    fingerprint: str
    """Of the graph as the program has it, before its head was cut."""

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
    gm: GraphModule,
    *,
    num_forward_outputs: int,
    static_input_indices: Sequence[int],
    checkpoint_tags: CheckpointTags = "override",
) -> JointGraph:
    """:func:`clean`, then :func:`describe`."""
    return describe(
        gm,
        clean(gm, checkpoint_tags),
        num_forward_outputs=num_forward_outputs,
        static_input_indices=static_input_indices,
    )


def clean(
    gm: GraphModule, checkpoint_tags: CheckpointTags = "override"
) -> dict[Node, Literal["store", "recompute"]]:
    """Merge common subexpressions and take the program's own checkpoint tags off, in place; returns the tags.

    Raises:
        RegionError: the program uses ``torch.utils.checkpoint`` and ``checkpoint_tags`` is ``"error"``.
    """
    compat.cse(gm)
    return _checkpoint_tags(gm, checkpoint_tags)


def describe(
    gm: GraphModule,
    tags: Mapping[Node, str],
    *,
    num_forward_outputs: int,
    static_input_indices: Sequence[int],
    identity: str = "",
) -> JointGraph:
    """Tell the regions of a clean joint graph apart.

    ``identity`` is the graph's :func:`fingerprint` from before it was changed, if it was.
    """
    _refresh_views(gm)
    compat.tag_forced_saves(gm)
    nodes = list(gm.graph.nodes)
    end = compat.forward_region_end(nodes)
    if hoist_masks(nodes[: end + 1], nodes[end + 1 :]):
        nodes = list(gm.graph.nodes)
        end = compat.forward_region_end(nodes)
    forward_side = [node for node in nodes[: end + 1] if not compat.is_tangent(node)]
    epilogue = [node for node in nodes[end + 1 :] if compat.must_be_in_forward(node)]
    primals = tuple(node for node in forward_side if node.op == "placeholder")
    outputs = list(next(node for node in nodes if node.op == "output").args[0])
    flat = [out if isinstance(out, Node) else None for out in outputs]
    return JointGraph(
        gm=gm,
        primals=primals,
        tangents=tuple(n for n in nodes if n.op == "placeholder" and compat.is_tangent(n)),
        forward=tuple(n for n in (*forward_side, *epilogue) if n.op == "call_function"),
        backward=tuple(
            n for n in nodes[end + 1 :] if n.op == "call_function" and n not in epilogue
        ),
        forward_outputs=tuple(flat[:num_forward_outputs]),
        backward_outputs=tuple(flat[num_forward_outputs:]),
        static_input_indices=tuple(static_input_indices),
        mutated_inputs=_mutated_inputs(gm, primals),
        tags=dict(tags),
        fingerprint=identity or fingerprint(gm),
    )


def fingerprint(gm: GraphModule) -> str:
    """Of a joint graph's structure: ops, wiring and dtypes, no sizes."""
    index = {node: i for i, node in enumerate(gm.graph.nodes)}
    digest = hashlib.sha256()
    for node in gm.graph.nodes:
        value = tensor(node)
        wiring = [index[arg] for arg in node.all_input_nodes]
        dtype = value.dtype if value is not None else ""
        digest.update(f"{node.op} {op_name(node)} {wiring} {dtype}\n".encode())
    return digest.hexdigest()[:16]


def _checkpoint_tags(
    gm: GraphModule, handling: CheckpointTags
) -> dict[Node, Literal["store", "recompute"]]:
    """Read and clear the tags that ``torch.utils.checkpoint`` left on the graph."""
    if handling == "respect":
        compat.settle_checkpoint_boundaries(gm)
    policies = {node: node.meta.pop("recompute", None) for node in gm.graph.nodes}
    tagged = {node: policy for node, policy in policies.items() if policy is not None}
    if handling == "override":
        return {}
    if handling == "error" and tagged:
        first = next(iter(tagged))
        raise RegionError(
            f"the update uses torch.utils.checkpoint at {source_line(first) or first.name} ({len(tagged)} operations) "
            "and checkpoint_tags is 'error'; turn checkpointing off, or pass 'override' or 'respect'"
        )
    return {
        node: "store" if "SAVE" in str(getattr(policy, "name", policy)) else "recompute"
        for node, policy in tagged.items()
    }


def _refresh_views(gm: GraphModule) -> None:
    """Evaluate views anew that look at a storage no node makes any more.

    Joint passes put a copy's source in the copy's place (dropout of nothing, a clone that changes nothing), but views
    of the copy keep its storage and would pass for values of their own.
    """
    for node in gm.graph.nodes:
        if compat.is_getitem(node) and compat.is_view(node.args[0]):
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
        elif compat.is_view(node) and compat.storage_key(node) != compat.storage_key(node.args[0]):
            arguments = torch.fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
            with fake_mode_of(node.all_input_nodes):
                node.meta["val"] = node.target(*arguments[0], **arguments[1])


def _mutated_inputs(gm: GraphModule, primals: Sequence[Node]) -> frozenset[Node]:
    found = set(compat.mutated_inputs(gm))
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.copy_.default and node.args[0] in primals:
            found.add(node.args[0])
    return frozenset(found)
