from __future__ import annotations

import pytest
import torch

from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.overwrite import fixed_bytes, overwritten, temporaries
from hilore_planner.passes.schedule import ON_GPU, build_schedule, held_values
from hilore_planner.passes.units import build_units
from tests.passes.programs import HandMade

aten = torch.ops.aten
U = 64 * 64 * 4
"""Bytes of one (64, 64) float32 value."""


def _forward(*, is_read_twice: bool) -> JointGraph:
    """a = x w, b = 2 a, c = b w, d = c w; with d = c + a or d = c + sum(a) where ``is_read_twice``."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    b = hand.call(aten.mul.Tensor, a, 2)
    rows = [hand.call(aten.sum.dim_IntList, a, [1], True)] if is_read_twice else []
    c = hand.call(aten.mm.default, b, w)
    d = hand.call(aten.mm.default, c, w)
    e = hand.call(aten.add.Tensor, d, *rows) if rows else d
    g = hand.call(aten.mm.default, tangent, w, tag="is_backward")
    return hand.joint([e], [g], parameters=[1])


def _over(joint: JointGraph) -> int:
    schedule = build_schedule(joint)
    held = tuple(held_values(joint, schedule))
    return len(overwritten(schedule, held, temporaries(schedule, held)))


def test_a_result_is_written_over_what_it_alone_reads() -> None:
    joint = _forward(is_read_twice=False)
    assert _over(joint) == 1
    # a, b over a, then c beside b and d beside c; d is held to the end, where its gradient and g are.
    assert fixed_bytes(joint, build_schedule(joint), 0)[:4] == [U, U, 2 * U, 2 * U]


def test_a_value_that_two_buffers_read_stays() -> None:
    joint = _forward(is_read_twice=True)
    rows = 64 * 4
    # The sum of rows over a is a buffer of its own, though small; e is written over d.
    expected = [U, 2 * U + rows, 2 * U + rows, 2 * U + rows, U + rows]
    assert fixed_bytes(joint, build_schedule(joint), 0)[:5] == expected


@pytest.mark.parametrize(("is_gathered", "count"), [(False, 1), (True, 0)])
def test_a_row_is_written_over_with_what_its_sum_makes_of_it(is_gathered: bool, count: int) -> None:
    """a = x w, b = a - sum(a) or a - a[index], c = b w: the sum comes first, and reads each value in its place."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    rows = hand.call(aten.sum.dim_IntList, a, [1], True)
    if is_gathered:
        index = hand.call(aten.full.default, [64, 1], 3, dtype=torch.int64)
        picked = hand.call(aten.gather.default, a, 1, index)
        rows = hand.call(aten.add.Tensor, rows, picked)
    b = hand.call(aten.sub.Tensor, a, rows)
    c = hand.call(aten.mm.default, b, w)
    g = hand.call(aten.mm.default, tangent, w, tag="is_backward")
    assert _over(hand.joint([c], [g], parameters=[1])) == count


@pytest.mark.parametrize(("op", "saved_bytes"), [("mul", U), ("mm", 0)])
def test_a_product_is_written_over_what_backward_reads_last(op: str, saved_bytes: int) -> None:
    """Forward: a = x w, b = a w. Backward: g = dy w, k = a g, out = k g."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    b = hand.call(aten.mm.default, a, w)
    g = hand.call(aten.mm.default, tangent, w, tag="is_backward")
    target = {"mul": aten.mul.Tensor, "mm": aten.mm.default}[op]
    k = hand.call(target, a, g, tag="is_backward")
    out = hand.call(aten.mm.default, k, g, tag="is_backward")
    joint = hand.joint([b], [None, out], parameters=[1])
    schedule = build_schedule(joint)
    graph = build_units(joint, schedule, small_bytes=0)
    assert [ending.step for ending in graph.endings()] == [3]
    alone = fixed_bytes(joint, schedule, 0)
    whole = fixed_bytes(joint, schedule, 0, graph.endings())
    # Whether a is kept or made again, it is there when k is made, and k then takes its place.
    assert whole == [*alone[:3], alone[3] - saved_bytes, alone[4]]


@pytest.mark.parametrize(("is_on_gpu", "count"), [(False, 0), (True, 1)])
def test_what_is_written_part_by_part_is_written_over_nothing_on_the_cpu(
    is_on_gpu: bool, count: int
) -> None:
    """a = x w, b = the halves of a the other way round, c = b w, d = c w."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    left = hand.call(aten.slice.Tensor, a, 1, 0, 32)
    right = hand.call(aten.slice.Tensor, a, 1, 32, 64)
    b = hand.call(aten.cat.default, [right, left], 1)
    c = hand.call(aten.mm.default, b, w)
    d = hand.call(aten.mm.default, c, w)
    g = hand.call(aten.mm.default, tangent, w, tag="is_backward")
    joint = hand.joint([d], [g], parameters=[1])
    joint.gm.meta[ON_GPU] = is_on_gpu
    schedule = build_schedule(joint)
    held = tuple(held_values(joint, schedule))
    assert len(overwritten(schedule, held, temporaries(schedule, held))) == count
