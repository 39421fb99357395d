"""What is rebuilt from a copy for a product is no part of the kernel that sums rows of the same copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hilore_planner.passes import compat
from hilore_planner.passes.apart import keep_apart
from hilore_planner.solvers.problem import Unit
from tests.passes.joint import Cut, Traced, cut, trace_update
from tests.passes.placements import place, prefer, problem_of
from tests.passes.test_codecs_placed import Deep

pytestmark = pytest.mark.compat


class _Wide(Deep):
    """Of rows with several groups."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(256), nn.Linear(256, 256), nn.Linear(128, 256)


@pytest.fixture(scope="module")
def deep() -> Traced:
    torch.manual_seed(0)
    return trace_update(_Wide(), torch.randn(16, 8, 256))


def _halves(deep: Traced, action: str) -> Cut:
    """Inputs of products are made again, all else is done as ``action`` says."""

    def choose(unit: Unit) -> str:
        return prefer(*(("recompute",) if "mul" in unit.name else ()), action)(unit)

    graph = deep.units()
    return cut(graph, place(problem_of(graph), choose))


def _held(halves: Cut) -> dict[str, str]:
    """What is held after what in the backward."""
    nodes = halves.backward.graph.find_nodes(op="call_function", target=compat.held_after())
    return {node.args[0].name: node.args[1].name for node in nodes}


def test_norm_outputs_are_rebuilt_before_the_next_kernel_and_gated_products_are_not_held(
    deep: Traced,
) -> None:
    halves = _halves(deep, "compress:int8")
    before = halves.run(deep)
    # Of three layers the first has its input at hand; gated products meet no sum of rows.
    assert keep_apart(halves.backward) == 2
    halves.backward.graph.lint()
    held = _held(halves)
    assert len(held) == 2
    assert all(name.startswith(("mm", "addmm")) for name in held)
    assert all(name.startswith("mul") for name in held.values())
    for found, expected in zip(halves.run(deep)[1], before[1], strict=True):
        assert (found is None and expected is None) or torch.equal(found, expected)


@pytest.mark.parametrize("action", ["store", "recompute", "compress:fp8_e4m3"])
def test_nothing_is_held_apart_without_scales_of_groups(deep: Traced, action: str) -> None:
    """Of eight-bit floats rows that are summed have one."""
    assert keep_apart(_halves(deep, action).backward) == 0
