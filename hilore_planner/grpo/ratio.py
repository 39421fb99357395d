"""Importance ratios: of tokens, and of sequences as the geometric mean over their tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from hilore_planner.grpo.batch import LossBatch


def inside(values: Tensor, batch: LossBatch) -> Tensor:
    """``values`` (B, T) with zeros where the mask is zero, whatever stands there."""
    return torch.where(batch.live_mask, values, torch.zeros_like(values))


def log_ratio(log_probs: Tensor, batch: LossBatch, old: Tensor | None = None) -> Tensor:
    """``l − o``, (B, T), zero outside the mask; ``o`` is ``old`` or the batch's old policy.

    Without an old policy the ratio is one but keeps its gradient.
    """
    reference = batch.old_log_probs if old is None else old
    reference = log_probs.detach() if reference is None else reference
    return inside(log_probs - reference, batch)


def bounded(log_r: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """``log_r`` clamped to ±``limit``, and where that leaves it its gradient."""
    return log_r.clamp(-limit, limit), log_r.detach().abs() <= limit


def lengths(batch: LossBatch, dtype: torch.dtype) -> Tensor:
    """Live tokens of each sequence, at least one, (B, 1)."""
    return batch.live_mask.sum(-1, keepdim=True).to(dtype).clamp(min=1.0)


def sequence_mean(values: Tensor, batch: LossBatch) -> Tensor:
    """Mean of ``values`` (B, T) over each sequence's live tokens, (B, 1)."""
    return inside(values, batch).sum(-1, keepdim=True) / lengths(batch, values.dtype)


def sequence_spread(batch: LossBatch, dtype: torch.dtype) -> Tensor:
    """∂log s_i/∂l[i,t] of the geometric mean: ``m/L_i``, (B, T)."""
    return batch.live_mask.to(dtype) / lengths(batch, dtype)
