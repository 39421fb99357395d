"""Case: eight layers with every value as int8; encoded where it is made, decoded where it is first read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hilore_planner.peak import StepPeak
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import refigured, replay
from tests.guarantees.regions import PLENTY, Region, capture

WIDTH, ROWS = 128, 512
VALUE_BYTES = ROWS * WIDTH * 4


class Mlp(nn.Module):
    """Linear layers with GELU, and a mean square."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x.square().mean()


def _everything_int8(region: Region) -> PlacementPlan:
    """A plan that keeps each value a codec is offered for as int8, and makes the others from those."""
    plan = region.planned(PLENTY, gradient_error=0.9, codecs=["int8"]).plan
    placement = {}
    for unit in plan.problem.units:
        if unit.codecs:
            placement[unit.name] = "compress:int8"
        elif unit.name in plan.solution.placement:
            placement[unit.name] = plan.solution.placement[unit.name]
    found = replay(plan.problem, placement)
    solution = replace(
        plan.solution,
        status="feasible",
        placement=placement,
        bound_ns=0,
        gap=1.0,
    )
    return replace(plan, solution=refigured(solution, found))


def _peak(layers: int) -> tuple[StepPeak, int]:
    torch.manual_seed(0)
    region = capture(Mlp(layers), torch.randn(ROWS, WIDTH))
    plan = _everything_int8(region)
    compressed = [name for name, a in plan.solution.placement.items() if a == "compress:int8"]
    peak = region.peak(plan, gradient_error=0.9, codecs=["int8"])
    return peak, len(compressed)


def _whole(peak: StepPeak, side: str) -> list[str]:
    """Values in full precision alive at one side's peak, the input aside."""
    owners = (peak.forward if side == "forward" else peak.backward).owners
    found = [owner for owner in owners if owner.requested_bytes == VALUE_BYTES and owner.line]
    return [f"{owner.name}:{owner.line}" for owner in found]


@pytest.mark.compat
@pytest.mark.usefixtures("no_kernels")
def test_no_decoded_copy_outlives_its_reader() -> None:
    for layers in (4, 8):
        peak, compressed = _peak(layers)
        assert compressed >= layers
        # A quarter of each value, a scale for 128 of them, and the loss.
        assert peak.saved_bytes <= compressed * VALUE_BYTES * (1 / 4 + 1 / 128) + 64 * 1024
        # Forward: a value, its successor. Backward: a gradient, the next, a decoded value, an activation.
        assert len(_whole(peak, "forward")) <= 2
        assert len(_whole(peak, "backward")) <= 4
