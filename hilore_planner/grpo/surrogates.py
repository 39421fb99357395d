"""Token losses of the policy gradient, each with its slope along the log-ratio.

Legend: ``r`` the ratio, ``A`` the advantage, ``l`` the log-probability; all (B, T) or (B, 1).
Each function returns ``(value, slope)``: the value is differentiable, the slope is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Clip:
    """Where the ratio carries gradient: ``r ≤ high`` for A > 0, ``low ≤ r ≤ ceiling`` for A < 0.

    Every PPO clip is of this form: plain (``ceiling`` infinite), dual clip and TRL's ``delta``.
    """

    low: float
    high: float
    ceiling: float = math.inf

    def apply(self, log_r: Tensor, advantages: Tensor) -> Pair:
        """``−A·clip(r)`` and ``−A·r`` where the clip does not hold it."""
        ratio = torch.exp(log_r)
        gains = advantages > 0
        clipped = torch.where(
            gains, ratio.clamp(max=self.high), ratio.clamp(min=self.low, max=self.ceiling)
        )
        held = ratio.detach()
        free = torch.where(gains, held <= self.high, (held >= self.low) & (held <= self.ceiling))
        return -clipped * advantages, -held * advantages * free

    def bound(self, advantages: Tensor, ratio_limit: float) -> Tensor:
        """Bound on the slope's size over all ratios up to ``ratio_limit``."""
        high, ceiling = min(self.high, ratio_limit), min(self.ceiling, ratio_limit)
        largest = by_sign(advantages, high, ceiling)
        return times_advantage(largest, advantages)


def by_sign(advantages: Tensor, gaining: float, losing: float) -> Tensor:
    """``gaining`` where the advantage is positive, else ``losing``, in the advantages' dtype."""
    options = advantages.new_full((), gaining), advantages.new_full((), losing)
    return torch.where(advantages > 0, *options)


def times_advantage(factor: Tensor | float, advantages: Tensor) -> Tensor:
    """``factor·|A|`` with zero advantage giving zero even where the factor is infinite."""
    return torch.where(advantages == 0, torch.zeros_like(advantages), advantages.abs() * factor)


def detached(factor: Tensor, advantages: Tensor, log_probs: Tensor) -> Pair:
    """``−f·A·l`` with ``f`` a constant for the gradient (REINFORCE, CISPO, VESPO, DPPO)."""
    scale = -factor.detach() * advantages
    return scale * log_probs, scale.expand_as(log_probs)


def soft_gate(log_r: Tensor, advantages: Tensor, tau: Tensor) -> Pair:
    """SAPO: ``−A·σ(τ(r−1))·4/τ`` and its slope ``−A·4z(1−z)·r``.

    Source: arXiv 2511.20347.
    """
    ratio = torch.exp(log_r)
    value = -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages
    held = ratio.detach()
    gate = torch.sigmoid(tau * (held - 1))
    return value, -4 * gate * (1 - gate) * held * advantages


def soft_gate_peak(tau: float) -> float:
    """The largest value over r > 0 of ``4z(1−z)·r``, z = σ(τ(r−1)).

    With x = τ(r−1) its stationary point solves tanh(x/2)·(τ + x) = 1; bisection on (0, 2 + 2/τ).
    """
    low, high = 0.0, 2.0 + 2.0 / tau
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if math.tanh(middle / 2) * (tau + middle) > 1 else (middle, high)
    return (1 + high / tau) / math.cosh(high / 2) ** 2


def soft_gate_bound(advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """Bound on the slope's size of :func:`soft_gate` over all ratios."""
    peaks = by_sign(advantages, soft_gate_peak(tau_pos), soft_gate_peak(tau_neg))
    return times_advantage(peaks, advantages)
