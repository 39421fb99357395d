"""The program as steps, and what is alive at each whatever is decided.

Inductor fuses neighbouring pointwise work and reductions into one kernel and runs everything else as a kernel of its
own. A *step* is therefore one extern op or one maximal run of fusible ops between two extern ops. A value takes memory
only if it is *written out*: an extern op makes or reads it, the caller gets it, or it is read in a later step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

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
        if self.kinds[_worker(storage.maker)] is OpKind.EXTERN or is_joined(storage.maker):
            return True
        return any(
            self.kinds[node] is OpKind.EXTERN or self.step_of[node] != step for node in readers
        )


def _worker(node: Node) -> Node:
    """The node that does the work behind one output of a multi-output op."""
    if compat.is_getitem(node) and isinstance(node.args[0], Node):
        return node.args[0]
    return node


ON_GPU = "hilore_on_gpu"
"""Metadata key of a module whose graph is for a GPU, whatever device its values have."""


def is_on_cpu(node: Node) -> bool:
    """Whether a node's tensor is made by Inductor's C++ backend."""
    value, module = tensor(node), node.graph.owning_module
    if value is None or value.device.type != "cpu":
        return False
    return module is None or not module.meta.get(ON_GPU)


def is_joined(node: Node) -> bool:
    """Whether Inductor writes a value part by part into a buffer: what ``cat`` joins on the CPU."""
    return op_name(node) == "cat" and is_on_cpu(node)


def build_schedule(joint: JointGraph) -> Schedule:
    """Cut the joint graph into steps and collect its storages."""
    nodes = (*joint.forward, *joint.backward)
    kinds = {node: kind_of(node) for node in nodes}
    steps = list(cut_steps(joint.forward, kinds))
    first_backward = len(steps)
    steps += cut_steps(joint.backward, kinds)
    step_of = {node: index for index, step in enumerate(steps) for node in step}
    return Schedule(tuple(steps), step_of, first_backward, _storages(joint, nodes, kinds), kinds)


def cut_steps(nodes: Iterable[Node], kinds: dict[Node, OpKind]) -> Iterator[tuple[Node, ...]]:
    """The steps of one side in order; views belong to none."""
    run: list[Node] = []
    for node in nodes:
        if kinds[node] is OpKind.FUSIBLE:
            run.append(node)
        elif kinds[node] is OpKind.EXTERN:
            if run:
                yield tuple(run)
                run = []
            yield (node,)
    if run:
        yield tuple(run)


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


HeldAs = Literal["outputs", "incoming gradients", "gradients", "forward values", "backward values"]


@dataclass(frozen=True, slots=True)
class Held:
    """A storage that the program holds whatever is decided, from step ``first`` to ``last``."""

    role: HeldAs
    storage: Storage
    first: int
    last: int


def held_values(joint: JointGraph, schedule: Schedule) -> Iterator[Held]:
    """What the forward itself holds, outputs the caller holds, gradients and other values of the backward.

    What a unit holds is the plan's business, and starts where the forward lets go of it.
    """
    outputs = {node for node in joint.forward_outputs if node is not None}
    gradients = {node for node in joint.backward_outputs if node is not None}
    end = len(schedule.steps) - 1
    for storage in schedule.storages.values():
        first = schedule.maker_step(storage)
        if storage.maker in joint.tangents:
            released = _released(schedule, storage)
            if released >= schedule.first_backward:
                yield Held("incoming gradients", storage, schedule.first_backward, released)
        elif first < 0:
            continue
        elif not outputs.isdisjoint(storage.nodes):
            yield Held("outputs", storage, first, end)
        elif not gradients.isdisjoint(storage.nodes):
            yield Held("gradients", storage, first, end)
        elif (last := _last_use(schedule, storage, first)) is not None:
            is_forward = first < schedule.first_backward
            role: HeldAs = "forward values" if is_forward else "backward values"
            yield Held(role, storage, first, last)


def _released(schedule: Schedule, tangent: Storage) -> int:
    """Last step at which an incoming gradient is held; autograd's frame keeps that of the loss to the end."""
    value = tensor(tangent.maker)
    is_loss = value is not None and value.dim() == 0
    if is_loss or not compat.backward_frees_tangents():
        return len(schedule.steps) - 1
    return max((schedule.step_of[node] for node in tangent.readers), default=-1)


def _last_use(schedule: Schedule, storage: Storage, first: int) -> int | None:
    """Last step at which a value is held on the side that makes it; None if it is never written out."""
    readers = storage.readers
    if first < schedule.first_backward:
        readers = [n for n in readers if schedule.step_of[n] < schedule.first_backward]
    if not schedule.is_written_out(storage, readers, first):
        return None
    return max([first, *(schedule.step_of[node] for node in readers)])


def roofline_bytes(value: torch.Tensor) -> int:
    """Bytes a kernel moves to read or write one tensor once (its elements, not its storage)."""
    count = 1
    for size in value.shape:
        count *= compat.hint(size)
    return count * value.element_size()
