"""Case: a toy llama of eight layers trained under caps; every update, optimizer included, stays under its cap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hilore_planner.backend import hilore
from hilore_planner.peak import measured_peak_bytes
from hilore_planner.peak.model import PolicyLoss, Shape
from hilore_planner.plan import PlacementPlan
from hilore_planner.render.show import show
from hilore_planner.sizes import format_bytes

UPDATES = 5
SHAPE = Shape(
    layers=8, hidden=64, intermediate=160, heads=4, kv_heads=2, vocabulary=512, batch=2, tokens=128
)


class Training:
    """Updates of the toy with AdamW, compiled under a cap.

    The cap is on the whole device; AdamW's state, which its first step makes, is reserved under it.
    """

    def __init__(self, cap_bytes: int, plan: Path) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.model = PolicyLoss(SHAPE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.batch = (torch.randint(512, (2, 128)), torch.rand(2, 128))
        options: dict[str, Any] = {"memory_cap": cap_bytes, "plan": plan}
        self.loss = torch.compile(self.model, backend=hilore, options=options, dynamic=False)

    def update(self) -> None:
        self.loss(*self.batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def held_bytes(self) -> int:
        """Weights, buffers, batch, and the optimizer's state."""
        states = (value for state in self.optimizer.state.values() for value in state.values())
        tensors = (*self.model.parameters(), *self.model.buffers(), *self.batch, *states)
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.mark.usefixtures("no_kernels")
def test_every_update_is_under_the_cap(tmp_path: Path) -> None:
    cap_bytes = 9 * 2**20  # storing everything takes above 12 MiB, the weights and AdamW's state 5
    path = tmp_path / "plan.json"
    training = Training(cap_bytes, path)
    training.update()
    peaks = []
    for _ in range(UPDATES):
        held_bytes = training.held_bytes
        peaks.append(held_bytes + measured_peak_bytes(training.update, "cpu").added_bytes)
    assert max(peaks) <= cap_bytes
    assert len(set(peaks)) == 1
    plan = PlacementPlan.load(path)
    assert set(plan.solution.placement.values()) == {"store", "recompute"}
    _check_shown(plan)


def _check_shown(plan: PlacementPlan) -> None:
    """Saved bytes and peak are two figures, each on a line of its own."""
    lines = [" ".join(line.plain.split()) for line in show(plan, 120)]
    (peak,) = (line for line in lines if line.startswith("predicted peak"))
    (saved,) = (line for line in lines if line.startswith("saved"))
    assert format_bytes(plan.predicted_peak_bytes) in peak
    assert f"saved {format_bytes(plan.solution.saved_bytes)} kept from forward to backward" == saved
    assert plan.solution.saved_bytes < plan.predicted_peak_bytes
