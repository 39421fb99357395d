"""Run a joint graph op by op, its backward as often as wanted with chosen units made inexact.

The forward runs once and leaves what backward may read: one value for each unit. A backward then reads every unit as it
is, except those it is told to round-trip through a codec or to make again from their parents. What has no unit is made
again by its readers, as in a planned update. The first backward, without changes, leaves a few of its own values:
others need not run what comes before their first change, as the head and later layers do. On a GPU chains of fusible
work run as one program each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node

from hilore_planner.calibration.fused import FusedChain, fused_chains
from hilore_planner.passes import compat
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import tensor
from hilore_planner.passes.units import RecoveryGraph

Values = dict[Node, Any]
Reads = Mapping[Node, Sequence[Node]]
MadeBy = Callable[[Node], Sequence[Node]]
"""All that is made where a node is run: with it, the other outputs of its chain."""
Change = Callable[[Tensor], Tensor] | Literal["recompute"]
_LANDMARKS = 12
"""Places in a backward that others may start from."""
Changes = Mapping[str, Change]
"""By unit name: what backward reads instead of the value, or that the unit is made again."""
_EAGER: Mapping[Any, Callable[..., Any]] = {
    torch.ops.prims.convert_element_type.default: Tensor.to,
}
"""What runs an op faster, by op: run by itself this one goes through a decomposition in Python."""


@dataclass(frozen=True, slots=True)
class JointInterpreter:
    """Interprets one joint graph.

    Attributes:
        joint: the graph.
        makers: nodes whose values the forward leaves, by unit name.
        at_hand: all nodes whose values the forward leaves.
        chains: those of the backward that are compiled, by what they make; all else runs op by op.
        reads: what running each node reads; torch lists it anew for each question, and every pass asks of all.
    """

    joint: JointGraph
    makers: Mapping[str, Node]
    at_hand: frozenset[Node]
    chains: Mapping[Node, FusedChain]
    reads: Reads

    @classmethod
    def of(cls, graph: RecoveryGraph) -> JointInterpreter:
        """For a graph of units. On the CPU, where compiling takes longer than it spares, all runs op by op."""
        joint = graph.joint
        makers = {unit.name: unit.maker for unit in graph.units.values() if unit.can_store}
        inputs = {compat.storage_key(primal) for primal in joint.primals}
        outputs = joint.held_storages() - inputs
        others = (
            node
            for node in joint.forward
            if compat.is_sym_node(node)
            or compat.storage_key(node) in outputs
            or (compat.is_getitem(node) and tensor(node) is None)
        )
        is_on_gpu = any(
            value.is_cuda for node in joint.primals if (value := tensor(node)) is not None
        )
        at_hand = frozenset((*makers.values(), *others))
        chains = fused_chains(graph, at_hand, compat.compile_alone) if is_on_gpu else {}
        return cls(joint, makers, at_hand, chains, reads_of(joint, chains))

    @torch.no_grad()
    def forward(self, inputs: Sequence[Any]) -> Values:
        """Run the forward; returns the inputs and what is at hand in backward."""
        values: Values = dict(zip(self.joint.primals, inputs, strict=True))
        nodes = [node for node in self.joint.forward if not _writes_input(node)]
        kept = self.at_hand | set(self.joint.primals)
        done_with = _done_with(nodes, self.reads, self._made_by, kept)
        for node, done in zip(nodes, done_with, strict=True):
            values[node] = _run(node, values)
            for used in done:
                del values[used]
        return values

    @torch.no_grad()
    def reference(self, values: Values) -> dict[int, Tensor]:
        """Gradients of a scalar loss, by primals' indices; leaves in ``values`` where other backwards may start."""
        wanted = self._outputs()
        order = self._order(self._at_start(values), {}, wanted)
        kept = landmarks(order, self.reads, self._made_by, frozenset(wanted))
        return dict(self._backward(values, {}, wanted, {}, kept))

    @torch.no_grad()
    def gradients(self, values: Values, changes: Changes) -> Iterator[tuple[int, Tensor]]:
        """Run the backward again under changes; yields each gradient that they alter, as soon as it is there."""
        changed = {self.makers[name]: change for name, change in changes.items()}
        altered = self._altered(values, changed)
        changed = {node: change for node, change in changed.items() if node in altered}
        wanted = {node: of for node, of in self._outputs().items() if node in altered}
        rest = {node: value for node, value in values.items() if node not in altered}
        exact = {node: values[node] for node in changed}
        yield from self._backward(rest, changed, wanted, exact, frozenset())

    def _outputs(self) -> dict[Node, list[int]]:
        """Indices of the primals whose gradient a node is."""
        found: dict[Node, list[int]] = {}
        for index, node in enumerate(self.joint.backward_outputs):
            if node is not None:
                found.setdefault(node, []).append(index)
        return found

    def _at_start(self, values: Values) -> frozenset[Node]:
        return frozenset((*values, *self.joint.tangents))

    def _altered(self, values: Values, changed: Mapping[Node, Change]) -> frozenset[Node]:
        """Nodes whose values in backward are others than in the reference."""
        found: set[Node] = set()
        at_hand = self.at_hand - changed.keys()
        for node in (*self.joint.forward, *self.joint.backward):
            is_round_trip = changed.get(node, "recompute") != "recompute"
            reads_altered = node not in at_hand and not found.isdisjoint(self.reads[node])
            if is_round_trip or reads_altered:
                found.add(node)
        return frozenset(found)

    def _backward(
        self,
        values: Values,
        changed: Mapping[Node, Change],
        wanted: Mapping[Node, list[int]],
        exact: Values,
        kept: frozenset[Node],
    ) -> Iterator[tuple[int, Tensor]]:
        """Run what ``wanted`` needs beyond ``values``, and leave in them what is ``kept``.

        ``exact`` has what changed units are without their change.
        """
        env = values | {tangent: _one(tangent) for tangent in self.joint.tangents}
        fixed = self._at_start(values)
        order = self._order(fixed, changed, wanted)
        done_with = _done_with(order, self._reads(changed), self._made_by, fixed)
        done: set[Node] = set()
        for place, last_read in zip(order, done_with, strict=True):
            for node, value in self._results(place, env, changed, exact):
                env[node] = value
                done.add(node)
                if node in kept:
                    values[node] = value
                yield from ((index, value) for index in wanted.get(node, ()))
            for used in last_read:
                del env[used]
        for node, places in wanted.items():
            if node not in done:
                yield from ((index, env[node]) for index in places)

    def _results(
        self, node: Node, values: Values, changed: Mapping[Node, Change], exact: Values
    ) -> Iterable[tuple[Node, Any]]:
        """What is made where a node is run, of ``values``, or of what a changed unit is without its change."""
        chain = self.chains.get(node)
        if chain is not None:
            return chain(values)
        change = changed.get(node, "recompute")
        made = _run(node, values) if change == "recompute" else _like(change, exact[node])
        return ((node, made),)

    def _made_by(self, node: Node) -> Sequence[Node]:
        chain = self.chains.get(node)
        return (node,) if chain is None else chain.outputs

    def _order(
        self, fixed: frozenset[Node], changed: Mapping[Node, Change], wanted: Iterable[Node]
    ) -> list[Node]:
        """Nodes to run: of the backward what is needed, and forward nodes right before their first reader.

        One stands for all outputs of its chain.
        """
        reads = self._reads(changed)
        needed = set(wanted)
        for node in reversed(self.joint.backward):
            if node in needed and node not in fixed:
                needed.update(reads[node])
        order: list[Node] = []
        done = set(fixed)

        def visit(node: Node) -> None:
            done.update(self._made_by(node))
            for argument in reads[node]:
                if argument not in done:
                    visit(argument)
            order.append(node)

        for node in (*self.joint.backward, *wanted):
            if node in needed and node not in done and not _writes_input(node):
                visit(node)
        return order

    def _reads(self, changed: Mapping[Node, Change]) -> Reads:
        """What running a node in backward reads; a round trip reads the kept value alone."""
        trips = (node for node, change in changed.items() if change != "recompute")
        return {**self.reads, **dict.fromkeys(trips, ())}


def reads_of(joint: JointGraph, chains: Mapping[Node, FusedChain]) -> Reads:
    """What running each node reads."""
    reads = {node: node.all_input_nodes for node in (*joint.forward, *joint.backward)}
    return {**reads, **{node: chain.inputs for node, chain in chains.items()}}


def landmarks(
    order: Sequence[Node], reads: Reads, made_by: MadeBy, outputs: frozenset[Node]
) -> frozenset[Node]:
    """Values that a backward may start from: in each part of ``order``, those alive where fewest bytes are."""
    done_with = _done_with(order, reads, made_by, frozenset())
    alive: set[Node] = set()
    places: list[tuple[float, frozenset[Node]]] = []
    for node, last_read in zip(order, done_with, strict=True):
        alive.update(made_by(node))
        alive.difference_update(last_read)
        places.append((sum(map(_bytes, alive - outputs)), frozenset(alive)))
    size = -(-len(order) // _LANDMARKS) or 1
    parts = (places[start : start + size] for start in range(0, len(order), size))
    least = (min(part, key=lambda place: place[0]) for part in parts)
    return frozenset(node for size_bytes, nodes in least if size_bytes < math.inf for node in nodes)


def _bytes(node: Node) -> float:
    """Of a value; endless where it is no tensor, as of an operator with several."""
    value = tensor(node)
    return math.inf if value is None else float(value.numel() * value.element_size())


def _run(node: Node, values: Mapping[Node, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    run: Any = _EAGER.get(node.target, node.target)
    return run(*args, **kwargs)


def _like(change: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """The changed value in the layout of the original, so that views of it stay views."""
    changed = change(value)
    return changed if changed.stride() == value.stride() else torch.empty_like(value).copy_(changed)


def _one(tangent: Node) -> Tensor:
    value = tensor(tangent)
    assert value is not None
    return torch.ones((), dtype=value.dtype, device=value.device)


def _writes_input(node: Node) -> bool:
    """Whether a node overwrites an input, which an update does after its forward."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _done_with(
    order: Sequence[Node], reads: Reads, made_by: MadeBy, kept: Collection[Node]
) -> list[list[Node]]:
    """By place in ``order``, the values that none after it reads, without those that are ``kept``."""
    last: dict[Node, int] = {}
    for place, node in enumerate(order):
        last |= dict.fromkeys((*made_by(node), *reads[node]), place)
    found: list[list[Node]] = [[] for _ in order]
    for node, place in last.items():
        if node not in kept:
            found[place].append(node)
    return found
