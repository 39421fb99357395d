"""The losses of verl 0.9.1's actor, under verl's option names.

Source: ``verl/trainer/ppo/core_algos.py`` (losses, ``agg_loss``) and
``verl/workers/utils/losses.py`` (KL and entropy parts). ``bypass_mode`` is ``vanilla`` without, or
``gpg`` with, the weights and the mask that rejection sampling leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo import kl
from hilore_planner.grpo.aggregation import (
    Count,
    count_sequences,
    count_tokens,
    per_sequence,
    per_token,
)
from hilore_planner.grpo.base import PolicyLoss, Traits, at_least, choices
from hilore_planner.grpo.batch import LossBatch, require
from hilore_planner.grpo.ratio import inside, sequence_mean
from hilore_planner.grpo.surrogates import Clip
from hilore_planner.grpo.term import SlopeBound, Term
from hilore_planner.grpo.verl_modes import MODES

AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)
KL_TYPES = tuple(kl.VERL) + tuple(f"{name}+" for name in kl.VERL)


@dataclass(frozen=True, slots=True)
class VerlLoss(PolicyLoss):
    """One configuration of verl's actor; fields are named and default as in ``ActorConfig``.

    ``LossBatch.num_tokens`` and ``num_sequences`` are verl's ``batch_num_tokens`` and
    ``global_batch_size``; ``LossBatch.is_weights`` is its ``rollout_is_weights``.

    Raises: OptionError for a value out of range.
    """

    loss_mode: str = "vanilla"
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: int | None = None
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 0.0002
    ppo_kl_coef: float = 0.1
    dro_beta: float | None = None
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    entropy_coeff: float = 0.0
    dp_size: int = 1

    def __post_init__(self) -> None:
        choices("loss_mode", self.loss_mode, tuple(MODES))
        choices("loss_agg_mode", self.loss_agg_mode, AGGREGATIONS)
        choices("kl_loss_type", self.kl_loss_type, KL_TYPES)
        for name in ("clip_ratio_low", "clip_ratio_high", "ppo_kl_coef", "kl_loss_coef"):
            at_least(name, getattr(self, name), 0.0)
        at_least("clip_ratio_c", self.clip_ratio_c, 1.0, above=True)
        for name in ("tau_pos", "tau_neg", "clip_cov_ratio", "kl_cov_ratio", "dro_beta"):
            at_least(name, getattr(self, name), 0.0, above=True)
        at_least("dp_size", self.dp_size, 1)
        at_least("loss_scale_factor", self.loss_scale_factor, 1)
        if self.loss_mode == "dro" and self.dro_beta is None:
            raise OptionError("dro_beta is None; accepted with loss_mode 'dro': a number > 0")

    @property
    def clip(self) -> Clip:
        """The two-sided clip without dual clip."""
        return Clip(1 - self.clip_ratio_low, 1 + self.clip_ratio_high)

    @property
    def has_divergence(self) -> bool:
        """Whether a KL term enters the loss."""
        return self.use_kl_loss and self.kl_loss_coef != 0

    @property
    def traits(self) -> Traits:
        """What this configuration allows."""
        mode = MODES[self.loss_mode]
        alive = {
            f"a KL term (kl_loss_coef={self.kl_loss_coef})": self.has_divergence,
            f"an entropy bonus (entropy_coeff={self.entropy_coeff})": self.entropy_coeff != 0,
            f"the quadratic penalty of dro (dro_beta={self.dro_beta})": self.loss_mode == "dro",
        }
        return Traits(
            known_before_forward=not mode.approximate,
            coupled=mode.coupled,
            whole_sequence=bool(mode.coupled),
            whole_batch=mode.whole_batch,
            approximate=mode.approximate,
            reads_log_probs=self.has_divergence,
            keeps_alive=" and ".join(reason for reason, holds in alive.items() if holds),
        )

    def token_weights(self, batch: LossBatch) -> Tensor:
        """Mask over normaliser, (B, T); ``sapo`` and ``geo_mean`` fix their own."""
        if self.loss_mode == "sapo":
            return self._aggregate(batch, "seq-mean-token-mean")
        if self.loss_mode == "geo_mean":
            return per_sequence(batch, batch.dtype, batch.mask.shape[0])
        return self._aggregate(batch, self.loss_agg_mode)

    def divergence_weights(self, batch: LossBatch) -> Tensor:
        """As the configured aggregation, whatever the policy part does."""
        return self._aggregate(batch, self.loss_agg_mode)

    def _aggregate(self, batch: LossBatch, mode: str) -> Tensor:
        dtype = batch.dtype
        if mode == "token-mean":
            return per_token(batch, dtype, count_tokens(batch) / self.dp_size)
        if mode == "token-sum":
            return per_token(batch, dtype, 1 / self.dp_size)
        share: Count = count_sequences(batch) / self.dp_size
        if mode == "seq-mean-token-mean":
            return per_sequence(batch, dtype, share)
        if mode == "seq-mean-token-sum":
            return per_token(batch, dtype, share)
        return per_token(batch, dtype, share * (self.loss_scale_factor or batch.mask.shape[1]))

    def policy(self, log_probs: Tensor, batch: LossBatch) -> Term:
        """The policy-gradient part."""
        return MODES[self.loss_mode].policy(self, log_probs, batch)

    def policy_bound(self, batch: LossBatch, ratio_limit: float) -> SlopeBound:
        """Bounds on the slopes over all ratios up to ``ratio_limit``."""
        return MODES[self.loss_mode].bound(self, batch, ratio_limit)

    def gate(self, log_probs: Tensor, batch: LossBatch) -> Tensor | None:
        """The rollout weights; ``geo_mean`` takes their geometric mean over the sequence."""
        return self.gate_bound(batch)

    def gate_bound(self, batch: LossBatch) -> Tensor | None:
        """The rollout weights, which need no forward."""
        if self.loss_mode != "geo_mean" or batch.is_weights is None:
            return batch.is_weights
        logs = torch.log(batch.is_weights + 1e-10).expand_as(batch.mask)
        return torch.exp(sequence_mean(logs, batch))

    def divergence(self, log_probs: Tensor, batch: LossBatch) -> Term | None:
        """``kl_loss_coef`` times the configured estimator."""
        if not self.has_divergence:
            return None
        d = inside(log_probs - require(batch, "ref_log_probs", "use_kl_loss"), batch)
        value, slope = kl.VERL[self.kl_loss_type.removesuffix("+")].apply(d)
        if self.kl_loss_type.endswith("+"):
            surrogate, slope = kl.k2(d)
            value = kl.with_gradient(value, surrogate)
        return Term(self.kl_loss_coef * value, self.kl_loss_coef * slope)

    def divergence_bound(self) -> float:
        """Bound on the estimator's slope, times its coefficient."""
        if not self.has_divergence:
            return 0.0
        if self.kl_loss_type.endswith("+"):
            return math.inf
        return self.kl_loss_coef * kl.VERL[self.kl_loss_type].bound

    def entropy_weights(self, batch: LossBatch) -> Tensor | None:
        """``−entropy_coeff`` times the aggregation's weights, (B, T)."""
        return -self.entropy_coeff * self.divergence_weights(batch) if self.entropy_coeff else None
