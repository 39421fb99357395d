from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import OpKind, op_name
from hilore_planner.passes.overwrite import fixed_bytes
from hilore_planner.passes.schedule import Schedule, build_schedule
from tests.passes.joint import Traced
from tests.passes.programs import HandMade

aten = torch.ops.aten
U = 64 * 64 * 4
"""Bytes of one (64, 64) float32 value."""


def _joint() -> tuple[JointGraph, dict[str, Node]]:
    """Forward: a = x w, b = relu(a), c = 2 b, d = c w, e = sum(d). Backward: as commented below."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1")
    a = hand.call(aten.mm.default, x, w)
    b = hand.call(aten.relu.default, a)
    c = hand.call(aten.mul.Tensor, b, 2)
    d = hand.call(aten.mm.default, c, w)
    e = hand.call(aten.sum.default, d)
    back = {"tag": "is_backward"}
    g = hand.call(aten.expand.default, tangent, [64, 64], **back)
    h = hand.call(aten.mm.default, g, w, **back)
    i = hand.call(aten.mul.Tensor, h, 2, **back)
    k = hand.call(aten.mul.Tensor, i, b, **back)
    t = hand.call(aten.permute.default, x, [1, 0], **back)
    grad = hand.call(aten.mm.default, t, k, **back)
    nodes = {"a": a, "b": b, "c": c, "d": d, "e": e, "g": g, "h": h, "i": i, "k": k, "grad": grad}
    names = {key: node.name for key, node in nodes.items()}
    joint = hand.joint([e], [None, grad], parameters=[1])
    by_name = {node.name: node for node in joint.gm.graph.nodes}
    return joint, {key: by_name[name] for key, name in names.items()}


@pytest.fixture
def scheduled() -> tuple[JointGraph, dict[str, Node], Schedule]:
    joint, nodes = _joint()
    return joint, nodes, build_schedule(joint)


Scheduled = tuple[JointGraph, dict[str, Node], Schedule]


def test_steps_are_kernels_of_their_own_and_runs_of_fusible_work(scheduled: Scheduled) -> None:
    _, nodes, schedule = scheduled
    expected = ["a", "b c", "d", "e", "h", "i k", "grad"]
    assert [[nodes[n] for n in step.split()] for step in expected] == [
        list(s) for s in schedule.steps
    ]
    assert schedule.first_backward == 4
    assert nodes["g"] not in schedule.step_of
    assert schedule.kinds[nodes["g"]] is OpKind.VIEW


def test_a_value_is_written_out_where_a_kernel_or_another_step_reads_it(
    scheduled: Scheduled,
) -> None:
    _, nodes, schedule = scheduled
    storages = {s.maker: s for s in schedule.storages.values()}

    def written(name: str, *readers: str) -> bool:
        storage = storages[nodes[name]]
        step = schedule.maker_step(storage)
        return schedule.is_written_out(storage, [nodes[r] for r in readers], step)

    assert written("a")  # a product writes its result, read or not
    assert not written("b")
    assert not written("b", "c")  # same step
    assert written("c", "d")  # a product reads it
    assert written("b", "k")  # another step reads it


def test_readers_look_through_views(scheduled: Scheduled) -> None:
    joint, nodes, schedule = scheduled
    storages = {s.maker: s for s in schedule.storages.values()}
    assert schedule.reader_steps(storages[nodes["b"]]) == [1, 5]
    assert schedule.maker_step(storages[joint.primals[0]]) == -1
    assert schedule.reader_steps(storages[joint.primals[0]]) == [0, 6]
    assert schedule.reader_steps(storages[joint.tangents[0]]) == [4]


def test_fixed_bytes_derived_by_hand(scheduled: Scheduled) -> None:
    joint, _, schedule = scheduled
    # Inputs are part of the base. b stays in registers (its backward reader is the plan's business).
    #   step   alive                                      bytes
    #   0 a    a                                          U
    #   1 b,c  a dies, c of the same size is born: reused U
    #   2 d    c, d                                       2 U
    #   3 e    d dies, e (4 bytes) is born, kept as output U + 4
    #   4 h    e, its gradient (held to the end), h       U + 8
    #   5 i,k  the same, h dies, k is born: reused        U + 8
    #   6 grad the same, k, grad                          2 U + 8
    base = 1000
    expected = [U, U, 2 * U, U + 4, U + 8, U + 8, 2 * U + 8]
    assert fixed_bytes(joint, schedule, base) == [base + size for size in expected]


def test_labels_name_ops_and_the_last_line(scheduled: Scheduled, block: Traced) -> None:
    _, _, schedule = scheduled
    assert [schedule.label(step) for step in (0, 1)] == ["mm", "relu, mul"]
    traced = build_schedule(block.joint())
    step = next(i for i, s in enumerate(traced.steps) if op_name(s[0]) == "addmm")
    assert traced.label(step).startswith("addmm (programs.py:")


def test_outputs_are_held_to_the_end() -> None:
    """A value that the caller gets is alive through all of backward, though forward reads it early.

    Its gradient is alive to its last reader, or to the end where autograd's own frame holds it.
    """
    hand = HandMade()
    x = hand.input("primals_1", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, x)
    b = hand.call(aten.mm.default, a, x)
    c = hand.call(aten.mm.default, tangent, x, tag="is_backward")
    d = hand.call(aten.mm.default, c, x, tag="is_backward")
    joint = hand.joint([a, b], [d])
    kept = 0 if compat.backward_frees_tangents() else U
    assert fixed_bytes(joint, build_schedule(joint), 0) == [U, 2 * U, 4 * U, 4 * U + kept]
