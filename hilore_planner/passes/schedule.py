"""The program as steps, and what is alive at each whatever is decided.

Inductor fuses neighbouring pointwise work and reductions into one kernel and runs everything else as a kernel of its
own. A *step* is therefore one extern op or one maximal run of fusible ops between two extern ops. A value takes memory
only if it is *written out*: an extern op makes or reads it, the caller gets it, or it is read in a later step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import OpKind, kind_of, op_name, storage_bytes, tensor


@dataclass(slots=True)
class Storage:
    """One storage of the joint graph: who makes it, who looks at it, who reads it."""

    key: int
    bytes: int
    nodes: list[Node] = field(default_factory=list)
    """All nodes that are (views of) this storage, the maker first."""
    readers: list[Node] = field(default_factory=list)
    """Nodes that do work on it; views do not count."""

    @property
    def maker(self) -> Node:
        """The node that creates the storage (a placeholder for inputs)."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps of the joint graph in program order; backward starts at ``first_backward``."""

    steps: tuple[tuple[Node, ...], ...]
    step_of: dict[Node, int]
    first_backward: int
    storages: dict[int, Storage]
    kinds: dict[Node, OpKind]

    def label(self, step: int) -> str:
        """Readable name of a step: its ops and the source line of the last."""
        names = list(dict.fromkeys(op_name(node) for node in self.steps[step]))
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        line = source_line(self.steps[step][-1])
        return f"{shown} ({line})" if line else shown

    def maker_step(self, storage: Storage) -> int:
        """Step that makes a storage; -1 for graph inputs."""
        return self.step_of.get(_worker(storage.maker), -1)

    def reader_steps(self, storage: Storage) -> list[int]:
        """Steps that read a storage, ascending."""
        return sorted({self.step_of[node] for node in storage.readers})

    def is_written_out(self, storage: Storage, readers: Iterable[Node], step: int) -> bool:
        """Whether a value made in ``step`` and read by ``readers`` takes memory."""
        if self.kinds[_worker(storage.maker)] is OpKind.EXTERN:
            return True
        return any(
            self.kinds[node] is OpKind.EXTERN or self.step_of[node] != step for node in readers
        )


def _worker(node: Node) -> Node:
    """The node that does the work behind one output of a multi-output op."""
    if compat.is_getitem(node) and isinstance(node.args[0], Node):
        return node.args[0]
    return node


def build_schedule(joint: JointGraph) -> Schedule:
    """Cut the joint graph into steps and collect its storages."""
    nodes = (*joint.forward, *joint.backward)
    kinds = {node: kind_of(node) for node in nodes}
    steps = _steps(joint.forward, kinds)
    first_backward = len(steps)
    steps += _steps(joint.backward, kinds)
    step_of = {node: index for index, step in enumerate(steps) for node in step}
    return Schedule(tuple(steps), step_of, first_backward, _storages(joint, nodes, kinds), kinds)


def _steps(nodes: Iterable[Node], kinds: dict[Node, OpKind]) -> list[tuple[Node, ...]]:
    steps: list[tuple[Node, ...]] = []
    run: list[Node] = []
    for node in nodes:
        if kinds[node] is OpKind.FUSIBLE:
            run.append(node)
        elif kinds[node] is OpKind.EXTERN:
            if run:
                steps.append(tuple(run))
                run = []
            steps.append((node,))
    if run:
        steps.append(tuple(run))
    return steps


def _storages(
    joint: JointGraph, nodes: Iterable[Node], kinds: dict[Node, OpKind]
) -> dict[int, Storage]:
    storages: dict[int, Storage] = {}

    def note(node: Node) -> None:
        value, key = tensor(node), compat.storage_key(node)
        if value is not None and key is not None:
            storages.setdefault(key, Storage(key, storage_bytes(value))).nodes.append(node)

    for node in (*joint.primals, *joint.tangents):
        note(node)
    for node in nodes:
        note(node)
        if kinds[node] is OpKind.VIEW:
            continue
        keys = (compat.storage_key(arg) for arg in node.all_input_nodes)
        for key in dict.fromkeys(keys):
            if key is not None and key in storages:
                storages[key].readers.append(node)
    return storages


def fixed_bytes(joint: JointGraph, schedule: Schedule, base_bytes: int) -> list[int]:
    """Bytes alive at each step whatever is decided.

    ``base_bytes`` are alive throughout (weights, inputs, optimizer state, what others hold). Added to it: what the
    forward itself holds, gradients and other backward values, and outputs the caller holds.
    """
    count = len(schedule.steps)
    changes = [0] * (count + 1)
    born: list[Counter[int]] = [Counter() for _ in range(count)]
    dying: list[Counter[int]] = [Counter() for _ in range(count)]
    outputs = {
        node for node in (*joint.forward_outputs, *joint.backward_outputs) if node is not None
    }
    for storage in schedule.storages.values():
        span = _span(schedule, storage, outputs)
        if span is None:
            continue
        first, last = span
        changes[first] += storage.bytes
        changes[last + 1] -= storage.bytes
        born[first][storage.bytes] += 1
        dying[last][storage.bytes] += 1
    alive, result = base_bytes, []
    for step in range(count):
        alive += changes[step]
        result.append(alive - _reused_bytes(schedule, step, born[step], dying[step]))
    return result


def _reused_bytes(schedule: Schedule, step: int, born: Counter[int], dying: Counter[int]) -> int:
    """A fused kernel writes over an input of the same size that dies in it."""
    if schedule.kinds[schedule.steps[step][0]] is OpKind.EXTERN:
        return 0
    return sum(size * number for size, number in (born & dying).items())


def _span(schedule: Schedule, storage: Storage, outputs: set[Node]) -> tuple[int, int] | None:
    """First and last step at which the program itself holds a storage; None where it never does."""
    first = schedule.maker_step(storage)
    if first < 0:
        return None
    if not outputs.isdisjoint(storage.nodes):
        return first, len(schedule.steps) - 1
    readers = storage.readers
    if first < schedule.first_backward:
        readers = [n for n in readers if schedule.step_of[n] < schedule.first_backward]
    if not schedule.is_written_out(storage, readers, first):
        return None
    return first, max([first, *(schedule.step_of[node] for node in readers)])


def roofline_bytes(value: torch.Tensor) -> int:
    """Bytes a kernel moves to read or write one tensor once (its elements, not its storage)."""
    count = 1
    for size in value.shape:
        count *= compat.hint(size)
    return count * value.element_size()
