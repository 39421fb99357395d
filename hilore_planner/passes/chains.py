"""Chains of fusible work: what Inductor compiles to one kernel, or a few.

A chain is cut out of a graph by what it writes: everything fusible that those values are made from, back to what is in
memory. In a recovery graph two kinds are of interest: the chain of a step, as it runs where every unit is stored, and
the chain that makes a unit again from its parents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.ops import OpKind, kind_of, tensor
from hilore_planner.passes.schedule import cut_steps, roofline_bytes
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit

aten = torch.ops.aten


_LOOK_UPS = frozenset({aten.embedding.default, aten.gather.default, aten.index.Tensor})
"""Ops that read the parts of their first argument which they return."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Fusible work with the views in it.

    Attributes:
        nodes: in an order they can run in.
        inputs: values it reads from memory.
        outputs: values it writes to memory.
        input_bytes: read of each input.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    input_bytes: tuple[int, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written, each value once."""
        return sum(self.input_bytes) + sum(map(value_bytes, self.outputs))


def value_bytes(node: Node) -> int:
    """Bytes of the elements of a node's tensor, or of all of a multi-output op's; 0 where it has none."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return sum(roofline_bytes(each) for each in values if isinstance(each, torch.Tensor))


def cut_chain(outputs: Sequence[Node], is_inside: Callable[[Node], bool]) -> Chain:
    """Everything ``is_inside`` that ``outputs`` are made from; the first that is not is an input."""
    nodes: dict[Node, None] = {}
    inputs: dict[Node, None] = {}
    stack = list(reversed(outputs))
    while stack:
        node = stack[-1]
        if node in nodes:
            stack.pop()
            continue
        arguments = [arg for arg in node.all_input_nodes if arg not in nodes]
        pending = [arg for arg in arguments if is_inside(arg)]
        if pending:
            stack.extend(reversed(pending))
            continue
        stack.pop()
        nodes[node] = None
        inputs |= dict.fromkeys(arguments)
    read = tuple(node for node in inputs if tensor(node) is not None)
    sizes = tuple(_read_bytes(node, nodes) for node in read)
    return Chain(tuple(nodes), read, tuple(dict.fromkeys(outputs)), sizes)


def _read_bytes(node: Node, nodes: Collection[Node]) -> int:
    """Bytes a chain reads of an input: no more than the parts it slices or looks up."""
    readers = [user for user in node.users if user in nodes]
    if all(compat.is_view(r) or (r.target in _LOOK_UPS and r.args[0] is node) for r in readers):
        return min(value_bytes(node), sum(map(value_bytes, readers)))
    return value_bytes(node)


class Chains:
    """The chains of one recovery graph."""

    def __init__(self, graph: RecoveryGraph) -> None:
        self._graph = graph
        self._forward = frozenset(graph.joint.forward)
        self._kinds = graph.schedule.kinds
        units = (compat.storage_key(unit.maker) for unit in graph.units.values())
        self._in_memory = graph.joint.held_storages() | frozenset(
            key for key in units if key is not None
        )
        self._written = self._written_by_step()
        self._steps: dict[int, Chain] = {}
        self._units: dict[str, Chain] = {}

    def of_step(self, step: int) -> Chain:
        """What a fused step runs, every unit that backward reads being stored.

        The forward writes here only what it needs itself: what storing more costs is a matter of the unit.
        """
        if step not in self._steps:
            inside = frozenset(self._graph.schedule.steps[step])
            is_backward = step >= self._graph.schedule.first_backward
            self._steps[step] = cut_chain(
                self._written.get(step, ()),
                lambda node: (
                    node in inside
                    or self._is_look(node)
                    or (is_backward and self._is_in_registers(node))
                ),
            )
        return self._steps[step]

    def of_unit(self, unit: RecoveryUnit) -> Chain:
        """What makes a fusible unit again from its parents."""
        if unit.name not in self._units:
            self._units[unit.name] = cut_chain(
                [unit.maker], lambda node: self._is_look(node) or self._is_in_registers(node)
            )
        return self._units[unit.name]

    def extra_reads_bytes(self, unit: RecoveryUnit) -> int:
        """Bytes that the kernel which reads a unit reads more of, where it makes it again instead; may be negative."""
        graph = self._graph
        step_of = graph.schedule.step_of
        readers = [self.of_step(step) for step in {step_of[node] for node in unit.readers}]
        children = (graph.units[name] for name in graph.digraph.successors(unit.name))
        readers += [self.of_unit(child) for child in children if self.is_fusible(child)]
        read = {compat.storage_key(node) for chain in readers for node in chain.inputs}
        chain = self.of_unit(unit)
        more = (
            size
            for node, size in zip(chain.inputs, chain.input_bytes, strict=True)
            if compat.storage_key(node) not in read
        )
        return sum(more) - value_bytes(unit.maker)

    def is_fusible(self, unit: RecoveryUnit) -> bool:
        """Whether a unit is made by fusible work."""
        return self._kinds[unit.maker] is OpKind.FUSIBLE

    def _is_look(self, node: Node) -> bool:
        """Whether a node is only another look at a value, or one output of fusible work."""
        if self._kinds.get(node) is not OpKind.VIEW or compat.is_sym_node(node):
            return False
        return not _is_kernel_output(node, self._kinds)

    def _is_in_registers(self, node: Node) -> bool:
        """Whether a forward value is made again by whoever reads it."""
        return (
            node in self._forward
            and self._kinds[node] is OpKind.FUSIBLE
            and compat.storage_key(node) not in self._in_memory
        )

    def _written_by_step(self) -> dict[int, list[Node]]:
        """The values each fused step writes for other steps of its side, or for the caller."""
        schedule, joint = self._graph.schedule, self._graph.joint
        results = [*joint.forward_outputs, *joint.backward_outputs]
        given = {compat.storage_key(node) for node in results if node is not None}
        written: dict[int, list[Node]] = {}
        for storage in schedule.storages.values():
            step = schedule.maker_step(storage)
            if step < 0 or schedule.kinds[schedule.steps[step][0]] is OpKind.EXTERN:
                continue
            steps = [schedule.step_of[node] for node in storage.readers]
            if step < schedule.first_backward:
                steps = [s for s in steps if s < schedule.first_backward]
            if storage.key in given or any(s != step for s in steps):
                written.setdefault(step, []).append(storage.maker)
        return written


def _is_kernel_output(node: Node, kinds: dict[Node, OpKind]) -> bool:
    """Whether a node picks one output of a kernel of its own."""
    return compat.is_getitem(node) and kinds.get(node.args[0]) is OpKind.EXTERN  # type: ignore[arg-type]


Piece = Node | Chain
"""What runs by itself: a kernel of its own, or a chain."""


def pieces(gm: GraphModule) -> Iterator[Piece]:
    """What a forward or backward graph runs, in order."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    kinds = {node: kind_of(node) for node in calls}
    steps = list(cut_steps(calls, kinds))
    step_of = {node: index for index, step in enumerate(steps) for node in step}
    for index, step in enumerate(steps):
        if kinds[step[0]] is OpKind.EXTERN:
            yield step[0]
            continue
        written = [node for node in step if _is_read_outside(node, index, step_of)]
        chain = cut_chain(written, lambda node: _is_inside(node, index, step_of, kinds))  # noqa: B023
        if chain.nodes:
            yield chain


def _is_inside(node: Node, step: int, step_of: dict[Node, int], kinds: dict[Node, OpKind]) -> bool:
    if kinds.get(node) is OpKind.VIEW:
        return not compat.is_sym_node(node) and not _is_kernel_output(node, kinds)
    return step_of.get(node) == step


def _is_read_outside(node: Node, step: int, step_of: dict[Node, int]) -> bool:
    """Whether another step, or the caller, reads a value or a view of it."""
    return any(step_of.get(reader, -1) != step for reader in _readers(node, step_of))


def _readers(node: Node, step_of: dict[Node, int]) -> Iterable[Node]:
    stack, seen = list(node.users), set[Node]()
    while stack:
        user = stack.pop()
        if user in seen:
            continue
        seen.add(user)
        if user in step_of or user.op == "output":
            yield user
        else:
            stack.extend(user.users)
