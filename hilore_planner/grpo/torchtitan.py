"""The losses of torchtitan's reinforcement-learning experiment: DAPO, and GRPO as its special case.

Source: ``torchtitan/experiments/rl/losses/dapo.py`` (2026).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hilore_planner.grpo.aggregation import per_token
from hilore_planner.grpo.base import PolicyLoss, Traits, at_least
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.ratio import bounded, log_ratio
from hilore_planner.grpo.surrogates import Clip
from hilore_planner.grpo.term import SlopeBound, Term

LOG_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class TorchtitanLoss(PolicyLoss):
    """``DAPOLoss``; with equal clips it is ``GRPOLoss``.

    ``LossBatch.num_tokens`` is its ``global_valid_tokens``; without it the sum is not divided.
    ``LossBatch.old_log_probs`` are the generator's; a token where they are not finite is dropped.

    Raises: OptionError for a clip below zero.
    """

    ratio_clip_low: float = 0.2
    ratio_clip_high: float = 0.2

    def __post_init__(self) -> None:
        for name in ("ratio_clip_low", "ratio_clip_high"):
            at_least(name, getattr(self, name), 0.0)

    @property
    def clip(self) -> Clip:
        """Where the ratio carries gradient."""
        return Clip(1 - self.ratio_clip_low, 1 + self.ratio_clip_high)

    @property
    def traits(self) -> Traits:
        """What this configuration allows."""
        return Traits(known_before_forward=True)

    def token_weights(self, batch: LossBatch) -> Tensor:
        """Mask over normaliser, (B, T), zero where the generator gave no finite number."""
        count = 1.0 if batch.num_tokens is None else batch.num_tokens
        tokens = count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1.0)
        scored = batch
        if batch.old_log_probs is not None:
            finite = torch.isfinite(batch.old_log_probs)
            scored = replace(batch, mask=batch.live_mask & finite)
        return per_token(scored, batch.dtype, tokens)

    def policy(self, log_probs: Tensor, batch: LossBatch) -> Term:
        """The policy-gradient part."""
        log_r, free = bounded(torch.nan_to_num(log_ratio(log_probs, batch)), LOG_LIMIT)
        value, slope = self.clip.apply(log_r, batch.token_advantages)
        return Term(value, slope * free)

    def policy_bound(self, batch: LossBatch, ratio_limit: float) -> SlopeBound:
        """Bounds on the slopes over all ratios up to ``ratio_limit``."""
        limit = min(ratio_limit, math.exp(LOG_LIMIT))
        return SlopeBound(self.clip.bound(batch.token_advantages, limit))
