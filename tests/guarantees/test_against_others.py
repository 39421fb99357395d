"""Wherever torch's memory budget or gradient checkpointing fits, a plan fits, and adds no more time than it must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hilore_planner.passes import compat
from hilore_planner.peak import StepPeak
from tests.guarantees.regions import capture
from tests.guarantees.test_ladder import policy, policy_model

pytestmark = pytest.mark.usefixtures("no_kernels")

LAYERS = 2


@contextmanager
def _budget(share: float) -> Iterator[None]:
    compat.set_activation_memory_budget(share)
    try:
        yield
    finally:
        compat.set_activation_memory_budget(1.0)


class Checkpointed(nn.Module):
    """A decoder layer under gradient checkpointing."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.layer, *inputs, use_reentrant=False, preserve_rng_state=False)
        return out


def _checkpointed_peak() -> StepPeak:
    model = policy_model(LAYERS)
    model.layers = nn.ModuleList(Checkpointed(layer) for layer in model.layers)
    region = capture(model, torch.randint(512, (2, 128)), torch.rand(2, 128))
    return region.unplanned_peak()


def test_a_plan_fits_where_torchs_budget_fits() -> None:
    region = policy(LAYERS)
    for share in (0.0, 0.5, 1.0):
        with _budget(share):
            theirs = region.unplanned_peak()
        ours = region.planned(theirs.peak_bytes)
        assert ours.peak_bytes <= theirs.peak_bytes


def test_a_plan_fits_where_gradient_checkpointing_fits() -> None:
    theirs = _checkpointed_peak()
    ours = policy(LAYERS).planned(theirs.peak_bytes)
    assert ours.peak_bytes <= theirs.peak_bytes
