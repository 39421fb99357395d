"""Over a ladder of caps: more memory never costs time, and the compiled code never takes more than the cap."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from hilore_planner.bench.peak import ladder_caps
from hilore_planner.peak.model import PolicyLoss, Shape
from tests.guarantees.regions import PLENTY, Region, capture

pytestmark = pytest.mark.usefixtures("no_kernels")

RUNGS = 4


def policy(layers: int) -> Region:
    """The update of a toy of Qwen2's shape."""
    return capture(policy_model(layers), *policy_batch())


def policy_batch() -> tuple[Tensor, Tensor]:
    return torch.randint(512, (2, 128)), torch.rand(2, 128)


def policy_model(layers: int) -> PolicyLoss:
    torch.manual_seed(0)
    shape = Shape(
        layers=layers, hidden=96, intermediate=264, heads=4, kv_heads=2,
        vocabulary=512, batch=2, tokens=128,
    )  # fmt: skip
    return PolicyLoss(shape)


def test_more_memory_never_costs_time_and_every_cap_is_kept() -> None:
    region = policy(layers=1)
    least_bytes = region.least_bytes()
    caps = ladder_caps(least_bytes, region.planned(PLENTY).peak_bytes, RUNGS)
    plans = [region.planned(cap) for cap in caps]
    assert plans[0].peak_bytes == least_bytes
    for cap, planned in zip(caps, plans, strict=True):
        assert planned.peak_bytes <= cap
    for tighter, looser in itertools.pairwise(plans):
        assert tighter.added_ns >= looser.added_ns
