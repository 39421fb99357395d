"""Every closed-form coefficient against autograd, in fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.ratio import inside
from tests.grpo.batches import Drawn, drawn, random_batch, varied

LOSSES = varied()
EXACT = [loss for loss in LOSSES if not loss.traits.approximate]
RELATIVE = 1e-9


def gradient(loss: PolicyLoss, case: Drawn) -> Tensor:
    log_probs = case.log_probs.clone().requires_grad_()
    torch.manual_seed(0)
    (found,) = torch.autograd.grad(loss.loss(log_probs, case.batch), log_probs)
    return found


def scale(found: Tensor) -> float:
    return max(float(found.abs().max()), 1e-30)


@pytest.mark.parametrize("loss", EXACT, ids=str)
@given(case=drawn)
@settings(max_examples=6)
def test_coefficient_is_the_derivative(loss: PolicyLoss, case: Drawn) -> None:
    found = gradient(loss, case)
    coefficient = loss.coefficient(case.log_probs, case.batch)
    assert float((found - coefficient).abs().max()) <= RELATIVE * scale(found)
    bound = loss.coefficient_bound(case.batch)
    assert bool((found.abs() <= bound * (1 + RELATIVE)).all())


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.traits.approximate], ids=str)
@given(case=drawn)
@settings(max_examples=10)
def test_approximate_coefficient_is_exact_where_nothing_was_drawn(
    loss: PolicyLoss, case: Drawn
) -> None:
    found = gradient(loss, case)
    coefficient = loss.coefficient(case.log_probs, case.batch)
    assert float(torch.where(found == 0, 0.0, found - coefficient).abs().max()) <= RELATIVE


KNOWN = [loss for loss in LOSSES if loss.traits.known_before_forward]


@pytest.mark.parametrize("loss", KNOWN, ids=str)
def test_known_before_the_forward_on_policy(loss: PolicyLoss) -> None:
    case = random_batch(5, drift=0.0)
    before = loss.on_policy_coefficient(replace(case.batch, entropies=None))
    after = gradient(loss, case)
    assert float((before - after).abs().max()) <= RELATIVE * scale(after)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_ratio_limit_bounds_what_a_clip_does_not(loss: PolicyLoss) -> None:
    case = random_batch(7, drift=0.4)
    logs = inside(case.log_probs - case.batch.old_log_probs, case.batch)  # type: ignore[operator]
    bound = loss.coefficient_bound(case.batch, float(logs.abs().max().exp()))
    assert bool((gradient(loss, case).abs() <= bound * (1 + RELATIVE)).all())
    if loss.divergence_bound() == 0:
        assert bool(torch.isfinite(bound).all())


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_masked_positions_may_hold_anything(loss: PolicyLoss) -> None:
    case = random_batch(9)
    dead = ~case.batch.live_mask
    spoilt = {
        name: getattr(case.batch, name).masked_fill(dead, float("nan"))
        for name in ("old_log_probs", "ref_log_probs", "sampling_log_probs", "entropies")
    }
    batch = replace(case.batch, **spoilt)
    log_probs = case.log_probs.masked_fill(dead, float("inf"))
    assert bool((gradient(loss, Drawn(log_probs, batch)) == gradient(loss, case)).all())
    assert bool(torch.isfinite(loss.coefficient(log_probs, batch)).all())
