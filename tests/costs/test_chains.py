"""What runs by itself, cut out of graphs made by hand."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes.chains import Chain, Chains, pieces
from hilore_planner.passes.ops import op_name
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, build_units
from tests.passes.programs import HandMade

aten = torch.ops.aten
U = 64 * 64 * 4


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [op_name(node) for node in nodes]


def chain_at(chains: Chains, place: int) -> Chain:
    piece = chains.pieces[place]
    assert isinstance(piece, Chain)
    return piece


def graph() -> RecoveryGraph:
    """a = x w, h = a.half(), b = relu(h).float(), out = b w; backward reads b in a product and h in a fused step."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    h = hand.call(torch.ops.prims.convert_element_type.default, a, torch.bfloat16)
    b = hand.call(
        torch.ops.prims.convert_element_type.default, hand.call(aten.relu.default, h), torch.float32
    )
    out = hand.call(aten.mm.default, b, w)
    back = {"tag": "is_backward"}
    first = hand.call(aten.mm.default, tangent, hand.call(aten.t.default, b, **back), **back)
    second = hand.call(aten.mul.Tensor, tangent, hand.call(aten.exp.default, h, **back), **back)
    joint = hand.joint([out], [first, second])
    return build_units(joint, build_schedule(joint), small_bytes=0)


def test_a_step_reads_and_writes_what_its_side_needs() -> None:
    found = graph()
    chains = Chains(found)
    # Pieces: mm | convert, relu, convert | mm || mm | exp, mul.
    forward, backward = chain_at(chains, 1), chain_at(chains, 4)
    assert names(forward.inputs) == ["mm"]
    # The half is read by backward only: writing it is what storing it costs.
    assert names(forward.outputs) == ["convert_element_type"]
    assert forward.moved_bytes == 2 * U
    assert names(backward.outputs) == ["mul"]
    assert backward.moved_bytes == U // 2 + 2 * U


def test_a_unit_is_made_again_from_its_parents() -> None:
    found = graph()
    chains = Chains(found)
    unit = found.units["convert_element_type#2"]
    made = chains.of_unit(unit)
    assert names(made.inputs) == ["convert_element_type"]
    assert names(made.nodes) == ["relu", "convert_element_type"]
    half = found.units["convert_element_type"]
    # In registers its readers read a (U) in place of it (U / 2).
    assert chains.extra_reads_bytes(half) == U - U // 2
    assert chains.is_fusible(half)
    assert not chains.is_fusible(found.units["mm"])


def test_values_without_a_unit_are_made_in_the_step_that_reads_them() -> None:
    hand = HandMade()
    x, tangent = hand.input("primals_1", 64, 64), hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, x)
    b = hand.call(aten.exp.default, a)  # no smaller than a: folded
    out = hand.call(aten.mul.Tensor, b, a)
    grad = hand.call(aten.mul.Tensor, tangent, b, tag="is_backward")
    joint = hand.joint([out], [grad])
    found = build_units(joint, build_schedule(joint), small_bytes=0)
    assert "exp" not in found.units
    step = chain_at(Chains(found), 2)
    assert names(step.nodes) == ["exp", "mul"]
    assert sorted(names(step.inputs)) == ["mm", "tangents_1"]


def test_only_the_rows_that_are_looked_up_are_read() -> None:
    hand = HandMade()
    table = hand.input("primals_1", 1000, 64)
    ids = hand.input("primals_2", 8, dtype=torch.int64)
    tangent = hand.input("tangents_1", 8, 64)
    rows = hand.call(aten.embedding.default, table, ids)
    joint = hand.joint([rows], [hand.call(aten.neg.default, tangent, tag="is_backward")])
    found = build_units(joint, build_schedule(joint), small_bytes=0)
    assert chain_at(Chains(found), 0).moved_bytes == 2 * 8 * 64 * 4 + 8 * 8


def test_a_graph_runs_in_pieces() -> None:
    hand = HandMade()
    x = hand.input("x", 64, 64)
    twice = hand.call(aten.mul.Tensor, x, 2)
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    heads = hand.call(aten.view.default, twice, [1, 1, 64, 64])
    attention = hand.call(flash, heads, heads, heads)
    first = hand.call(operator.getitem, attention, 0)
    out = hand.call(aten.relu.default, hand.call(aten.neg.default, first))
    hand.graph.output((out,))
    found = list(pieces(GraphModule(torch.nn.Module(), hand.graph)))
    assert [op_name(p) if isinstance(p, Node) else names(p.nodes) for p in found] == [
        ["mul"],
        "_scaled_dot_product_flash_attention_for_cpu",
        ["neg", "relu"],
    ]
    last = found[-1]
    assert isinstance(last, Chain)
    assert (names(last.inputs), names(last.outputs)) == (
        ["_scaled_dot_product_flash_attention_for_cpu[0]"],
        ["relu"],
    )
