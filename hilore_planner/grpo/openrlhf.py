"""The actor's losses of OpenRLHF 0.11.2.

Source: ``openrlhf/models/loss.py`` (``PolicyLoss``, ``aggregate_loss``),
``openrlhf/models/utils.py`` (``compute_approx_kl``), ``openrlhf/trainer/ray/ppo_actor.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo import kl
from hilore_planner.grpo.aggregation import count_sequences, count_tokens, per_sequence, per_token
from hilore_planner.grpo.base import PolicyLoss, Traits, at_least, choices
from hilore_planner.grpo.batch import LossBatch, require
from hilore_planner.grpo.ratio import bounded, inside, log_ratio, sequence_mean, sequence_spread
from hilore_planner.grpo.surrogates import Clip
from hilore_planner.grpo.term import SlopeBound, Term

LOG_LIMIT = 20.0
KL_RATIO_CAP = 10.0
PROBABILITY_MARGIN = 1e-6


@dataclass(frozen=True, slots=True)
class OpenRLHFLoss(PolicyLoss):
    """One configuration of OpenRLHF's actor; fields are named as in ``PolicyLoss``.

    ``LossBatch.num_tokens`` and ``num_sequences`` are its ``batch_num_tokens`` and
    ``global_batch_size``, ``LossBatch.sampling_log_probs`` its ``rollout_log_probs``.

    Raises: OptionError for a value out of range.
    """

    policy_loss_type: str = "ppo"
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    dual_clip: float | None = None
    token_level_loss: bool = True
    is_correction_level: str = "off"
    is_correction_mode: str = "mask"
    is_correction_gating: str = "ratio"
    is_correction_threshold: tuple[float, float] = (0.5, 5.0)
    kl_coef: float = 0.0
    kl_estimator: str = "k1"
    kl_unbiased_gradient: bool = False
    entropy_coef: float = 0.0
    dp_size: int = 1

    def __post_init__(self) -> None:
        choices("policy_loss_type", self.policy_loss_type, ("ppo", "gspo"))
        choices("is_correction_level", self.is_correction_level, ("off", "token", "seq"))
        choices("is_correction_mode", self.is_correction_mode, ("mask", "clip"))
        choices("is_correction_gating", self.is_correction_gating, ("ratio", "binary_kl", "tv"))
        choices("kl_estimator", self.kl_estimator, tuple(kl.OPENRLHF))
        at_least("dual_clip", self.dual_clip, 1.0, above=True)
        for name in ("clip_eps_low", "clip_eps_high", "kl_coef"):
            at_least(name, getattr(self, name), 0.0)
        at_least("dp_size", self.dp_size, 1)
        low, _ = self.is_correction_threshold
        gates = self.is_correction_level != "off" and self.is_correction_gating != "ratio"
        if gates and low > 0:
            raise OptionError(
                f"is_correction_threshold is {self.is_correction_threshold}; accepted with "
                f"is_correction_gating {self.is_correction_gating!r}: a lower bound of 0, since a "
                "divergence is bounded from above only"
            )
        token_ratio = self.is_correction_level != "seq" and self.is_correction_gating == "ratio"
        if self.is_correction_mode == "clip" and not token_ratio:
            raise OptionError(
                "is_correction_mode 'clip' is accepted only with is_correction_level 'token' and "
                f"is_correction_gating 'ratio', not {self.is_correction_level!r} and "
                f"{self.is_correction_gating!r}"
            )

    @property
    def clip(self) -> Clip:
        """Where the ratio carries gradient."""
        ceiling = math.inf if self.dual_clip is None else self.dual_clip
        return Clip(1 - self.clip_eps_low, 1 + self.clip_eps_high, ceiling)

    @property
    def traits(self) -> Traits:
        """What this configuration allows."""
        is_sequence = self.policy_loss_type == "gspo"
        alive = {
            f"a KL term (kl_coef={self.kl_coef})": self.kl_coef != 0,
            f"an entropy bonus (entropy_coef={self.entropy_coef})": self.entropy_coef != 0,
        }
        return Traits(
            known_before_forward=True,
            coupled="sequence-level ratios" if is_sequence else "",
            whole_sequence=is_sequence or self.is_correction_level == "seq",
            reads_log_probs=self.kl_coef != 0 or self.is_correction_level != "off",
            keeps_alive=" and ".join(reason for reason, holds in alive.items() if holds),
        )

    def token_weights(self, batch: LossBatch) -> Tensor:
        """Mask over normaliser, (B, T); ``gspo`` always averages sequences."""
        dtype = batch.dtype
        if self.token_level_loss and self.policy_loss_type == "ppo":
            return per_token(batch, dtype, count_tokens(batch) / self.dp_size)
        return per_sequence(batch, dtype, count_sequences(batch) / self.dp_size)

    def divergence_weights(self, batch: LossBatch) -> Tensor:
        """By token, whatever the policy part does."""
        return per_token(batch, batch.dtype, count_tokens(batch) / self.dp_size)

    def policy(self, log_probs: Tensor, batch: LossBatch) -> Term:
        """The policy-gradient part."""
        advantages = batch.token_advantages
        if self.policy_loss_type == "ppo":
            log_r, free = bounded(log_ratio(log_probs, batch), LOG_LIMIT)
            value, slope = self.clip.apply(log_r, advantages)
            return Term(value, slope * free)
        corrected = self.is_correction_level != "off"
        old = require(batch, "sampling_log_probs", "is_correction_level") if corrected else None
        log_s = sequence_mean(log_ratio(log_probs, batch, old), batch)
        value, slope = self.clip.apply(log_s, advantages)
        return Term(value, sequence_slope=slope, spread=sequence_spread(batch, log_probs.dtype))

    def policy_bound(self, batch: LossBatch, ratio_limit: float) -> SlopeBound:
        """Bounds on the slopes over all ratios up to ``ratio_limit``."""
        limit = (
            min(ratio_limit, math.exp(LOG_LIMIT)) if self.policy_loss_type == "ppo" else ratio_limit
        )
        bound = self.clip.bound(batch.token_advantages, limit)
        if self.policy_loss_type == "ppo":
            return SlopeBound(bound)
        spread = sequence_spread(batch, batch.dtype)
        return SlopeBound(sequence_slope=bound, spread=spread)

    def gate(self, log_probs: Tensor, batch: LossBatch) -> Tensor | None:
        """The correction between the trained and the sampling engine."""
        return self.gate_bound(batch)

    def gate_bound(self, batch: LossBatch) -> Tensor | None:
        """The correction, which needs no forward; ``gspo`` has it in its ratio."""
        if self.is_correction_level == "off" or self.policy_loss_type == "gspo":
            return None
        low, high = self.is_correction_threshold
        old = require(batch, "old_log_probs", "is_correction_level")
        sampled = require(batch, "sampling_log_probs", "is_correction_level")
        weight = torch.exp(inside(old - sampled, batch))
        statistic = self._statistic(inside(old, batch), inside(sampled, batch), batch)
        if self.is_correction_mode == "clip":
            return statistic.clamp(low, high)
        return torch.where((statistic >= low) & (statistic <= high), weight, 0.0)

    def _statistic(self, old: Tensor, sampled: Tensor, batch: LossBatch) -> Tensor:
        """What is gated: the ratio or a divergence, of tokens (B, T) or of sequences (B, 1)."""
        by_sequence = self.is_correction_level == "seq"
        if self.is_correction_gating == "ratio":
            logs = old - sampled
            return torch.exp(sequence_mean(logs, batch) if by_sequence else logs)
        p = torch.exp(sampled).clamp(PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
        q = torch.exp(old).clamp(PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
        if self.is_correction_gating == "tv":
            divergence = (p - q).abs()
        else:
            divergence = p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q))
        return sequence_mean(divergence, batch) if by_sequence else divergence

    def divergence(self, log_probs: Tensor, batch: LossBatch) -> Term | None:
        """``kl_coef`` times the estimator; unbiased: its gradient is ``min(r, 10)(l − q)``."""
        if self.kl_coef == 0:
            return None
        d = inside(log_probs - require(batch, "ref_log_probs", "kl_coef"), batch)
        value, slope = kl.OPENRLHF[self.kl_estimator].apply(d)
        if self.kl_unbiased_gradient:
            ratio = torch.exp(log_ratio(log_probs, batch)).clamp(max=KL_RATIO_CAP).detach()
            surrogate, slope = kl.k2(d)
            value, slope = kl.with_gradient(value, ratio * surrogate), ratio * slope
        return Term(self.kl_coef * value, self.kl_coef * slope)

    def divergence_bound(self) -> float:
        """Bound on the estimator's slope, times its coefficient."""
        if self.kl_coef == 0:
            return 0.0
        bound = math.inf if self.kl_unbiased_gradient else kl.OPENRLHF[self.kl_estimator].bound
        return self.kl_coef * bound

    def entropy_weights(self, batch: LossBatch) -> Tensor | None:
        """``−entropy_coef`` over all live tokens, (B, T)."""
        return -self.entropy_coef * self.divergence_weights(batch) if self.entropy_coef else None
