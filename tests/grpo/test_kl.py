from __future__ import annotations

import pytest
import torch

from hilore_planner.grpo import kl

FAR = torch.linspace(-30, 30, 121, dtype=torch.float64)
ESTIMATORS = {
    "trl-k3": kl.Estimator(kl.k3, float("inf")),
    **{f"verl-{name}": estimator for name, estimator in kl.VERL.items()},
    **{f"openrlhf-{name}": estimator for name, estimator in kl.OPENRLHF.items()},
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_slope_and_bound_far_from_the_reference(name: str) -> None:
    """Where the clamps of the log-ratio and of the value hold, and where they do not."""
    d = FAR.clone().requires_grad_()
    value, slope = ESTIMATORS[name].apply(d)
    (gradient,) = torch.autograd.grad(value.sum(), d)
    torch.testing.assert_close(slope, gradient, rtol=1e-12, atol=0.0)
    assert bool((gradient.abs() <= ESTIMATORS[name].bound).all())


def test_the_bound_of_clamped_k3_is_close() -> None:
    d = torch.linspace(-3, 0, 3001, dtype=torch.float64)
    _, slope = kl.k3_verl(d)
    assert 0.95 * kl.K3_CLAMPED_BOUND < float(slope.abs().max()) <= kl.K3_CLAMPED_BOUND
