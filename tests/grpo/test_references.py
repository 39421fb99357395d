"""Loss, gradient and closed-form coefficient against the frameworks' own numbers.

Tolerances are relative to the largest coefficient (for a loss: to the sum of its tokens' sizes,
since its own value may cancel): 1e-6 in fp32, 1e-12 in fp64. OpenRLHF computes its KL in fp32
whatever it is given, so its KL rows get the fp32 tolerance in both.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from hilore_planner.grpo.openrlhf import OpenRLHFLoss
from tests.grpo.fixtures import LOSSES, Reference, load, names, reference

CASES = [
    pytest.param(framework, index, id=f"{framework}-{name}")
    for framework in ("trl", "verl", "openrlhf")
    for index, name in enumerate(names(framework))
]


def tolerance(case: Reference) -> float:
    loses_precision = isinstance(case.loss, OpenRLHFLoss) and case.loss.kl_coef != 0
    return 1e-6 if loses_precision or case.gradient.dtype == torch.float32 else 1e-12


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize(("framework", "index"), CASES)
def test_equals_the_framework(framework: str, index: int) -> None:
    case = reference(framework, index)
    log_probs = case.log_probs.clone().requires_grad_()
    torch.manual_seed(case.seed)
    loss = case.loss.loss(log_probs, case.batch)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    limit = tolerance(case)
    size = (case.gradient * case.log_probs).abs().sum()
    assert abs(loss.item() - case.value) <= limit * max(abs(case.value), float(size))
    assert error(gradient, case.gradient) <= limit

    coefficient = case.loss.coefficient(case.log_probs, case.batch)
    if case.loss.traits.approximate:  # the drawn tokens' coefficients are zero
        coefficient = torch.where(case.gradient == 0, 0, coefficient)
    assert error(coefficient, case.gradient) <= limit

    bound = case.loss.coefficient_bound(case.batch)
    assert bool((case.gradient.abs() <= bound * (1 + limit)).all())

    entropy = case.loss.entropy_weights(case.batch)
    assert (entropy is None) == (case.entropy_gradient is None)
    if entropy is not None and case.entropy_gradient is not None:
        assert error(entropy, case.entropy_gradient) <= limit


def test_recorded_versions() -> None:
    versions = {name: load(name)["version"] for name in ("trl", "verl", "openrlhf")}
    assert versions == {"trl": "1.16.0", "verl": "0.9.1", "openrlhf": "0.11.2"}


@pytest.mark.parametrize("framework", ["trl", "verl", "openrlhf"])
def test_defaults_are_the_frameworks(framework: str) -> None:
    ours = {f.name: f.default for f in fields(LOSSES[framework])}
    for name, default in load(framework)["defaults"].items():
        assert ours[name] == (tuple(default) if isinstance(default, list) else default), name


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_recorded_gradients_have_clipped_masked_and_dead_tokens(framework: str) -> None:
    """The fixtures would prove little if no token were switched off."""
    dead = clipped = 0
    for index in range(len(load(framework)["rows"])):
        case = reference(framework, index)
        live = case.batch.live_mask & (case.batch.advantages != 0).unsqueeze(1)
        clipped += int(((case.gradient == 0) & live).sum())
        dead += int((case.gradient[case.batch.advantages == 0] == 0).all())
    assert dead > 20
    assert clipped > 100
