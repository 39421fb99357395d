"""A part of a loss with its derivative in closed form, and how parts become coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Term:
    """Token losses and their slopes; each (B, T) or something that broadcasts to it.

    A value may depend on its own token's log-probability ``l[i,t]``, on the sequence's ratio
    ``s_i``, or on both; ``spread`` says how ``s_i`` moves with each token.
    """

    value: Tensor
    """Differentiable in the log-probabilities."""
    slope: Tensor | None = None
    """∂value[i,t]/∂l[i,t] at fixed ``s_i``."""
    sequence_slope: Tensor | None = None
    """∂value[i,t]/∂log s_i."""
    spread: Tensor | None = None
    """∂log s_i/∂l[i,t], (B, T)."""


@dataclass(frozen=True, slots=True)
class SlopeBound:
    """Bounds on the absolute slopes of a term that hold whatever the forward yields."""

    slope: Tensor | None = None
    sequence_slope: Tensor | None = None
    spread: Tensor | None = None


def coefficients(weights: Tensor, part: Term | SlopeBound) -> Tensor:
    """c[i,t] = ∂(Σ weights·value)/∂l[i,t], (B, T); of bounds: a bound on its size.

    Shapes: ``weights`` (B, T). A weight of zero gives zero even where a bound is infinite.
    """
    total = torch.zeros_like(weights)
    if part.slope is not None:
        total = total + weighted(weights, part.slope)
    if part.sequence_slope is not None and part.spread is not None:
        shared = weighted(weights, part.sequence_slope).sum(-1, keepdim=True)
        total = total + weighted(part.spread, shared)
    return total


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """``weights * values`` with zero times infinity being zero."""
    return torch.where(weights == 0, torch.zeros_like(weights), weights * values)
