"""Which loops Inductor's C++ backend calls as one function."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from torch.fx import GraphModule

from hilore_planner.passes import compat
from hilore_planner.passes.marks import MADE
from tests.passes.programs import HandMade

pytestmark = [pytest.mark.compat, pytest.mark.usefixtures("no_kernels")]

aten = torch.ops.aten
N = 64


def _functions(*, are_tied: bool = True, are_made_again: bool = False) -> int:
    """In how many functions three values are made, of which the others are held after the first."""
    hand = HandMade()
    inputs = [hand.input(f"x{i}", N, N + i) for i in range(3)]
    ops = (aten.relu.default, aten.sin.default, aten.cos.default)
    first, *others = (hand.call(op, value) for op, value in zip(ops, inputs, strict=True))
    if are_tied:
        others = [hand.call(compat.held_after(), value, first) for value in others]
        for tie in others:
            tie.meta[MADE] = are_made_again
    hand.graph.output((first, *others))
    gm = GraphModule(torch.nn.Module(), hand.graph)
    values = [torch.randn(N, N + i) for i in range(3)]
    _, (code,) = run_and_get_code(lambda: compat.compile_alone(gm, values)(list(values)))
    return code.count("async_compile.cpp_pybinding(")


def test_a_tied_value_starts_a_function() -> None:
    assert _functions(are_tied=False) == 1
    assert _functions() == 3


def test_values_that_are_made_again_in_a_row_share_one() -> None:
    assert _functions(are_made_again=True) == 2
