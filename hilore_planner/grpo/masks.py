"""Factors that switch tokens or sequences off: importance weights, entropy and off-policy masks.

Source: trl 1.16 ``GRPOTrainer`` (``_generate_and_score_completions``, ``get_high_entropy_mask``,
``get_off_policy_mask``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from hilore_planner.grpo.base import choices
from hilore_planner.grpo.batch import LossBatch, require
from hilore_planner.grpo.ratio import inside, sequence_mean

IS_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def product(factors: Iterable[Tensor | None]) -> Tensor | None:
    """The product of the factors that are there; None if none is."""
    total: Tensor | None = None
    for factor in factors:
        if factor is not None:
            total = factor if total is None else total * factor
    return total


def mask_truncated(batch: LossBatch, truncated: Tensor) -> LossBatch:
    """The batch with no live token in sequences that were cut short; they still count as rows.

    Shapes: ``truncated`` (B,) booleans.
    """
    return replace(batch, mask=torch.where(truncated.unsqueeze(1), 0, batch.mask))


def importance_weights(
    batch: LossBatch, *, mode: str = "sequence_mask", low: float | None = None, high: float = 3.0
) -> Tensor:
    """Old policy over sampling engine, (B, T) or, for a ``sequence_`` mode, (B, 1).

    ``_truncate`` clamps to [low, high]; ``_mask`` sets what is outside to exactly zero. Tokens
    whose sampling log-probability is NaN count as ratio one.

    Raises: OptionError for an unknown mode or missing log-probabilities.
    """
    choices("mode", mode, IS_MODES)
    old = require(batch, "old_log_probs", "importance_weights")
    sampling = require(batch, "sampling_log_probs", "importance_weights")
    difference = inside(old - sampling, batch).nan_to_num(nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return ratio.clamp(min=low, max=high)
    outside = ratio > high
    if low is not None:
        outside = outside | (ratio < low)
    return ratio.masked_fill(outside, 0.0)


def off_policy(log_probs: Tensor, batch: LossBatch, threshold: float) -> Tensor:
    """DeepSeek-V3.2's sequence mask: zero for sequences of negative advantage that drifted.

    Drift is the mean of ``sampling − l`` over live tokens; without sampling log-probabilities the
    old policy's stand in. Shapes: (B, 1), or (B, T) with token advantages.
    """
    sampled = batch.old_log_probs if batch.sampling_log_probs is None else batch.sampling_log_probs
    sampled = log_probs.detach() if sampled is None else sampled
    drift = sequence_mean((sampled - log_probs.detach()).nan_to_num(nan=0.0), batch)
    kept = (batch.token_advantages >= 0) | (drift <= threshold)
    return kept.to(log_probs.dtype)


def high_entropy(batch: LossBatch, top_quantile: float) -> Tensor:
    """One for live tokens whose entropy is in the batch's top ``top_quantile``, (B, T).

    The quantile is this batch's; where processes share a batch, theirs is over all of them.
    """
    entropies = require(batch, "entropies", "top_entropy_quantile").detach()
    live = entropies[batch.live_mask].float()
    if live.numel() == 0:
        return torch.zeros_like(entropies)
    threshold = torch.quantile(live, 1 - top_quantile)
    return ((entropies >= threshold) & batch.live_mask).to(entropies.dtype)
