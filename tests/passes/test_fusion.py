"""Which kernels fusible work makes, on graphs made by hand; Inductor's own wrapper is the oracle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest
import torch
from torch._inductor import compile_fx, metrics
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.chains import Chain, pieces, value_bytes
from hilore_planner.passes.ops import op_name
from tests.passes.programs import HandMade

aten = torch.ops.aten

N = 64
Program = Callable[[HandMade, Sequence[Node]], Sequence[Node]]


def product(hand: HandMade, left: Node, right: Node) -> Node:
    return hand.call(aten.mm.default, left, right)


def times(hand: HandMade, left: Node, right: Node) -> Node:
    return hand.call(aten.mul.Tensor, left, right)


def tied(hand: HandMade, value: Node, anchor: Node) -> Node:
    """The value, no earlier than the anchor; its memory is the value's own."""
    held = hand.call(compat.held_after(), value, anchor)
    held.meta["val"] = value.meta["val"]
    return held


def gated(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
    """A gate that is ready before the product it is multiplied with."""
    gate = hand.call(aten.exp.default, product(hand, x[0], x[1]))
    return [product(hand, times(hand, gate, product(hand, x[0], x[2])), x[3])]


def gated_backward(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
    """Two gradients from one product, with products of the first between them."""
    gradient = product(hand, x[0], x[1])
    up = times(hand, gradient, x[2])
    first = [product(hand, up, x[1]), product(hand, x[0], up)]
    gate = times(hand, times(hand, gradient, x[3]), hand.call(aten.exp.default, x[2]))
    return [*first, product(hand, gate, x[1])]


def rebuilt(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
    """A value made again for a product that could run later, together with what reads the same."""
    again = times(hand, x[2], x[3])
    weights = product(hand, again, x[0])
    gradient = product(hand, x[0], x[1])
    return [weights, product(hand, times(hand, times(hand, gradient, x[2]), x[3]), x[1])]


def waiting(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
    """Work that shares its input, but the second waits for a product of the first."""
    first = times(hand, x[2], x[3])
    return [first, product(hand, times(hand, product(hand, first, x[1]), x[2]), x[3])]


def normalised(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
    """A sum over each row and the work before and behind it; the statistic is returned, too."""
    total = hand.call(aten.add.Tensor, product(hand, x[0], x[1]), x[2])
    sums = hand.call(aten.sum.dim_IntList, times(hand, total, total), [-1], True)
    scale = hand.call(aten.rsqrt.default, sums)
    return [scale, product(hand, times(hand, total, scale), x[3])]


def sizes(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
    """Work over different numbers of elements, without anything in common but a small input."""
    half = hand.call(aten.slice.Tensor, x[0], 0, 0, N // 2)
    row = hand.call(aten.select.int, x[3], 0, 0)
    return [times(hand, half, row), times(hand, x[1], row)]


CASES: dict[Program, list[list[str]]] = {
    gated: [["exp", "mul"]],
    gated_backward: [["exp", "mul", "mul", "mul"]],
    rebuilt: [["mul", "mul", "mul"]],
    waiting: [["mul"], ["mul"]],
    normalised: [["add", "mul", "mul", "rsqrt", "sum"]],
    sizes: [["mul", "select", "slice"], ["mul", "select"]],
}


def built(program: Program) -> GraphModule:
    hand = HandMade()
    inputs = [hand.input(f"x{i}", N, N) for i in range(4)]
    hand.graph.output(tuple(program(hand, inputs)))
    return GraphModule(torch.nn.Module(), hand.graph)


@pytest.mark.parametrize("program", CASES)
def test_work_is_fused_whatever_stands_between(program: Program) -> None:
    found = list(pieces(built(program)))
    chains = [sorted(map(op_name, p.nodes)) for p in found if isinstance(p, Chain)]
    assert chains == CASES[program]


def test_a_kernel_runs_behind_all_that_it_waits_for() -> None:
    gm = built(rebuilt)
    found = [op_name(p) if isinstance(p, Node) else len(p.outputs) for p in pieces(gm)]
    assert found == ["mm", 2, "mm", "mm"]
    chain = next(p for p in pieces(gm) if isinstance(p, Chain))
    assert chain.moved_bytes == 5 * N * N * 4  # reads x2, x3 and the gradient, writes two


def test_a_value_held_after_what_is_made_from_it_closes_no_circle() -> None:
    def held(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
        first = product(hand, x[0], x[1])
        other = product(hand, first, x[2])
        again = tied(hand, first, other)
        return [other, product(hand, again, x[3])]

    assert [op_name(p) for p in pieces(built(held)) if isinstance(p, Node)] == ["mm"] * 3


def test_whatever_is_made_from_a_value_that_is_held_waits_for_what_it_is_held_after() -> None:
    """Its kernel was there before the tie was met."""

    def held(hand: HandMade, x: Sequence[Node]) -> Sequence[Node]:
        first = product(hand, x[0], x[1])
        later = times(hand, product(hand, first, x[1]), x[3])
        other = product(hand, hand.call(aten.exp.default, x[3]), x[2])
        again = tied(hand, first, other)
        return [later, product(hand, again, x[2])]

    # What the other is made from shares an input with it, and would be one kernel with it.
    chains = [p for p in pieces(built(held)) if isinstance(p, Chain)]
    assert [len(chain.outputs) for chain in chains] == [1, 1]


def test_what_few_values_make_is_made_by_each_reader() -> None:
    hand = HandMade()
    x = [hand.input(f"x{i}", N, N) for i in range(7)]
    for count, kernels in ((4, 1), (6, 2)):
        total = x[0]
        for value in x[1:count]:
            total = hand.call(aten.add.Tensor, total, value)
        half = hand.call(aten.slice.Tensor, total, 0, 0, N // 2)
        hand.graph.output((hand.call(aten.neg.default, total), hand.call(aten.exp.default, half)))
        found = [p for p in pieces(GraphModule(torch.nn.Module(), hand.graph))]
        assert sum(len(p.outputs) for p in found if isinstance(p, Chain)) == 1 + kernels
        hand.graph.erase_node(hand.graph.output_node())


@pytest.mark.compat
@pytest.mark.parametrize("program", [program for program in CASES if program is not sizes])
def test_inductor_moves_as_many_bytes(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """Of the programs without slices: of an input that is sliced Inductor counts all."""
    gm = built(program)
    found = list(pieces(gm))
    fused = [piece.moved_bytes for piece in found if isinstance(piece, Chain)]
    alone = [(p, *p.all_input_nodes) for p in found if isinstance(p, Node)]
    expected = sum(fused) + sum(value_bytes(node) for nodes in alone for node in {*nodes})
    caplog.set_level(logging.INFO, compile_fx.inductor_metrics_log.name)  # else it does not count
    metrics.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
        compat.compile_alone(gm, [torch.randn(N, N) for _ in range(4)])
    assert metrics.num_bytes_accessed == expected
