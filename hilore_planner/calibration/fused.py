"""Chains of fusible work in a backward, compiled.

Op by op, each step of a chain would read and write whole values, most of them in 32 bits. Layers are alike, so that a
handful of programs serves them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.chains import Chain, Chains, cut_chain, value_bytes
from hilore_planner.passes.cutout import graph_of, module_of
from hilore_planner.passes.ops import one_tensor, tensor
from hilore_planner.passes.units import RecoveryGraph

Compile = Callable[[GraphModule, Sequence[Tensor]], Callable[[list[Tensor]], Sequence[Tensor]]]
"""From a program and inputs of the layout it will be run on."""

LEAST_SPARED_BYTES = 8 << 30
"""What a program must spare in one backward: half a second of compiling over a hundred backwards, in reads and writes
of memory."""
_LAUNCH_BYTES = 32 << 20
"""What is read and written in the time of launching an op."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedChain:
    """A chain, and the program that runs it."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    run: Callable[[list[Tensor]], Sequence[Tensor]]

    def __call__(self, values: Mapping[Node, Any]) -> Iterator[tuple[Node, Tensor]]:
        """Each output with its value, in the layout that the graph was traced with."""
        made = self.run([_as_traced(values[node], node) for node in self.inputs])
        for node, value in zip(self.outputs, made, strict=True):
            yield node, _as_traced(value, node)


def fused_chains(
    graph: RecoveryGraph,
    at_hand: Collection[Node],
    compiled: Compile,
    least_spared_bytes: int = LEAST_SPARED_BYTES,
) -> dict[Node, FusedChain]:
    """The backward's chains that are worth compiling, by what they make; none makes again what is ``at_hand``."""
    backward = frozenset(graph.joint.backward)
    alike: dict[str, list[Chain]] = defaultdict(list)
    for piece in Chains(graph).pieces:
        if isinstance(piece, Chain) and _is_of(piece, backward):
            own = frozenset(piece.nodes).difference(at_hand)
            chain = cut_chain(piece.outputs, own.__contains__)
            alike[_identity(chain)].append(chain)
    found: dict[Node, FusedChain] = {}
    for chains in alike.values():
        if sum(map(_spared_bytes, chains)) < least_spared_bytes:
            continue
        run = compiled(module_of(chains[0]), [_blank(node) for node in chains[0].inputs])
        for chain in chains:
            found |= dict.fromkeys(chain.outputs, FusedChain(chain.inputs, chain.outputs, run))
    return found


def _is_of(chain: Chain, backward: Collection[Node]) -> bool:
    return all(node in backward and tensor(node) is not None for node in chain.outputs)


def _identity(chain: Chain) -> str:
    """The same for chains that one program can run."""
    layouts = [(v.shape, v.stride(), v.dtype, v.device) for v in map(one_tensor, chain.inputs)]
    return f"{graph_of(chain)} {layouts}"


def _spared_bytes(chain: Chain) -> int:
    """What one program reads and writes less than op after op would, launches included."""
    work = [node for node in chain.nodes if not compat.is_view(node)]
    separate = sum(value_bytes(node) + sum(map(value_bytes, compat.used_by(node))) for node in work)
    return separate - chain.moved_bytes + (len(work) - 1) * _LAUNCH_BYTES


def _as_traced(value: Tensor, node: Node) -> Tensor:
    expected = one_tensor(node).stride()
    strides = zip(value.shape, value.stride(), expected, strict=True)
    if all(size == 1 or stride == traced for size, stride, traced in strides):
        return value
    return _blank(node).copy_(value)


def _blank(node: Node) -> Tensor:
    value = one_tensor(node)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
