"""What is alive at each step whatever is decided, and which values a fused kernel writes its result over.

Inductor writes a result over an input of the same size where the input is needed no more: one node of the kernel makes
one buffer, and an input that two of them read stays, unless one comes before the other (the sums over a row, and what
is made of the row with them) and both read it place by place. Inputs of the graph are never written over, and what is
written part by part is never written over anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import OpKind, is_reduction
from hilore_planner.passes.schedule import Held, Schedule, held_values, is_joined

aten = torch.ops.aten
_ELSEWHERE = frozenset(
    {aten.gather.default, aten.index.Tensor, aten.index_select.default, aten.embedding.default}
)
"""What reads at places that data says."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A value that nothing reads after a step.

    Attributes:
        key: of its storage.
        readers: nodes that read it, in that step or before.
    """

    key: int
    size_bytes: int
    step: int
    readers: Collection[Node]


def temporaries(schedule: Schedule, held: Iterable[Held]) -> Iterator[Ending]:
    """The values among ``held`` that end with their last reader."""
    for value in held:
        if value.role in ("forward values", "backward values"):
            storage = value.storage
            yield Ending(storage.key, storage.bytes, value.last, storage.readers)


def overwritten(
    schedule: Schedule, held: Iterable[Held], endings: Iterable[Ending]
) -> dict[tuple[int, int], int]:
    """Values that are written over: by their storage's key and last step, the key of what is written there."""
    made: dict[int, dict[Node, Held]] = defaultdict(dict)
    ending_at: dict[int, list[Ending]] = defaultdict(list)
    for value in held:
        if value.role != "incoming gradients":
            made[value.first][value.storage.maker] = value
    for ending in endings:
        ending_at[ending.step].append(ending)
    return {
        (before, step): after
        for step, ending in ending_at.items()
        for before, after in _in_step(schedule, step, made[step], _open(schedule, step, ending))
    }


def _open(schedule: Schedule, step: int, endings: Sequence[Ending]) -> Sequence[Ending]:
    """What a step may write over: any of its inputs if it is fused, the total that a product is added to."""
    first = schedule.steps[step][0]
    if schedule.kinds[first] is OpKind.FUSIBLE:
        return endings
    if first.target is compat.added_mm():
        total = compat.storage_key(first.all_input_nodes[0])
        return [ending for ending in endings if ending.key == total]
    return ()


def _in_step(
    schedule: Schedule, step: int, made: dict[Node, Held], endings: Iterable[Ending]
) -> Iterator[tuple[int, int]]:
    trees = _trees(schedule, step, made)
    taken: set[Node] = set()
    for ending in endings:
        readers = [node for node, tree in trees.items() if not tree.isdisjoint(ending.readers)]
        last = _last(schedule, step, readers, ending) if readers else None
        over = None if last is None else made.get(last)
        if last is None or over is None or over.storage.bytes != ending.size_bytes:
            continue
        if last not in taken and not is_joined(last):
            taken.add(last)
            yield ending.key, over.storage.key


def _last(schedule: Schedule, step: int, readers: Sequence[Node], ending: Ending) -> Node | None:
    """The reader that comes after all others; None where there is none, or one reads at places of its own."""
    last = readers[-1]
    if len(readers) > 1 and any(node.target in _ELSEWHERE for node in ending.readers):
        return None
    behind = _within(last, set(schedule.steps[step]), schedule)
    return last if behind.issuperset(readers[:-1]) else None


def _trees(schedule: Schedule, step: int, made: Collection[Node]) -> dict[Node, set[Node]]:
    """For each buffer that a step makes, the nodes that compute it; reductions are buffers of their own."""
    members = set(schedule.steps[step])
    buffers = [node for node in schedule.steps[step] if node in made or is_reduction(node)]
    inner = members.difference(buffers)
    return {node: {node, *_within(node, inner, schedule)} for node in buffers}


def _within(node: Node, inner: Collection[Node], schedule: Schedule) -> set[Node]:
    """Nodes behind ``node`` that stay in registers, looking through views."""
    stack, seen = list(node.all_input_nodes), set[Node]()
    while stack:
        current = stack.pop()
        if current not in seen and (current in inner or schedule.kinds.get(current) is OpKind.VIEW):
            seen.add(current)
            stack.extend(current.all_input_nodes)
    return seen


def fixed_bytes(
    joint: JointGraph, schedule: Schedule, base_bytes: int, read_whole: Iterable[Ending] = ()
) -> list[int]:
    """Bytes alive at each step whatever is decided.

    Args:
        joint: the graph.
        schedule: its steps.
        base_bytes: alive throughout (weights, inputs, optimizer state, what others hold). Added to it is what the
            program itself holds.
        read_whole: values that are there as a whole in their last step whatever is decided, and counted elsewhere.
    """
    return alive_bytes(schedule, held_values(joint, schedule), base_bytes, read_whole)


def alive_bytes(
    schedule: Schedule,
    values: Iterable[Held],
    base_bytes: int,
    read_whole: Iterable[Ending] = (),
    is_counted: Callable[[Held], bool] = lambda _: True,
) -> list[int]:
    """Bytes of those of ``values`` that count, alive at each step, added to ``base_bytes``."""
    held, others = tuple(values), tuple(read_whole)
    over = overwritten(schedule, held, (*temporaries(schedule, held), *others))
    begun = {over[e.key, e.step] for e in others if (e.key, e.step) in over}
    changes = [0] * (len(schedule.steps) + 1)
    for value in filter(is_counted, held):
        key, size_bytes = value.storage.key, value.storage.bytes
        changes[value.first + (key in begun)] += size_bytes
        changes[value.last + ((key, value.last) not in over)] -= size_bytes
    return list(accumulate(changes[:-1], initial=base_bytes))[1:]
