"""Estimators of the divergence from the reference policy, each with its slope.

Legend: ``d = l − q``, the policy's log-probability over the reference's, (B, T).
Source: J. Schulman, "Approximating KL divergence" (2020), for k1, k2 and k3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]

MAX_VALUE = 10.0
"""What verl and OpenRLHF clamp an estimate at."""
MAX_EXPONENT = 20.0
"""What verl clamps the log-ratio at before it exponentiates."""

K3_CLAMPED_BOUND = 13.0
"""Bound on 1 − e^(−d) where k3 ≤ 10: e^x − x − 1 = 10 has its positive root below x = 2.62."""


def k1(d: Tensor) -> Pair:
    """``d``; its slope is one everywhere, so its gradient knows no reference."""
    return d, torch.ones_like(d).detach()


def absolute(d: Tensor) -> Pair:
    """``|d|``."""
    return d.abs(), torch.sign(d.detach())


def k2(d: Tensor) -> Pair:
    """``d²/2``."""
    return 0.5 * d.square(), d.detach()


def k3(d: Tensor) -> Pair:
    """``e^(−d) + d − 1`` as TRL has it, unclamped."""
    return torch.exp(-d) + d - 1, 1 - torch.exp(-d.detach())


def k3_verl(d: Tensor) -> Pair:
    """k3 with exponent and value clamped; no gradient where either clamp holds."""
    x = (-d).clamp(-MAX_EXPONENT, MAX_EXPONENT)
    raw = torch.exp(x) - x - 1
    held = d.detach()
    free = (held.abs() <= MAX_EXPONENT) & (raw.detach() <= MAX_VALUE)
    return raw.clamp(-MAX_VALUE, MAX_VALUE), (1 - torch.exp(x.detach())) * free


def k3_openrlhf(d: Tensor) -> Pair:
    """k3 with ``d`` bounded below and the value above."""
    x = d.clamp(min=-MAX_VALUE)
    raw = torch.exp(-x) - 1 + x
    free = (d.detach() >= -MAX_VALUE) & (raw.detach() <= MAX_VALUE)
    return raw.clamp(-MAX_VALUE, MAX_VALUE), (1 - torch.exp(-x.detach())) * free


def clamped(pair: Pair) -> Pair:
    """OpenRLHF's clamp of an estimate to ±10."""
    value, slope = pair
    held = value.detach().abs() <= MAX_VALUE
    return value.clamp(-MAX_VALUE, MAX_VALUE), slope * held


def with_gradient(value: Tensor, surrogate: Tensor) -> Tensor:
    """``value`` whose gradient is that of ``surrogate`` (straight-through)."""
    return value.detach() + surrogate - surrogate.detach()


@dataclass(frozen=True, slots=True)
class Estimator:
    """One estimator: its value with its slope, and a bound on the slope's size."""

    apply: Callable[[Tensor], Pair]
    bound: float


VERL: dict[str, Estimator] = {
    "kl": Estimator(k1, 1.0),
    "k1": Estimator(k1, 1.0),
    "abs": Estimator(absolute, 1.0),
    "mse": Estimator(k2, math.inf),
    "k2": Estimator(k2, math.inf),
    "low_var_kl": Estimator(k3_verl, K3_CLAMPED_BOUND),
    "k3": Estimator(k3_verl, K3_CLAMPED_BOUND),
}
"""verl 0.9.1 ``kl_penalty_forward``; a ``+`` after the name takes k2's gradient."""

OPENRLHF: dict[str, Estimator] = {
    "k1": Estimator(lambda d: clamped(k1(d)), 1.0),
    "k2": Estimator(lambda d: clamped(k2(d)), math.sqrt(2 * MAX_VALUE)),
    "k3": Estimator(k3_openrlhf, K3_CLAMPED_BOUND),
}
"""OpenRLHF 0.11.2 ``compute_approx_kl``."""
