"""The losses of TRL 1.16's ``GRPOTrainer``, under TRL's option names.

Source: ``trl/trainer/grpo_trainer.py``, ``_compute_loss``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.grpo import kl, masks
from hilore_planner.grpo.aggregation import count_tokens, per_sequence, per_token
from hilore_planner.grpo.base import PolicyLoss, Traits, at_least, between, choices
from hilore_planner.grpo.batch import LossBatch, require
from hilore_planner.grpo.ratio import inside, log_ratio, sequence_mean, sequence_spread
from hilore_planner.grpo.surrogates import (
    Clip,
    Pair,
    detached,
    soft_gate,
    soft_gate_bound,
    times_advantage,
)
from hilore_planner.grpo.term import SlopeBound, Term

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
LOSS_TYPES = (*CLIPPED, "cispo", "sapo", "vespo")
MIN_LOG_WEIGHT = math.log(1e-8)
MAX_LOG_WEIGHT = 20.0


@dataclass(frozen=True, slots=True)
class TRLLoss(PolicyLoss):
    """One configuration of ``GRPOTrainer``; fields are named and default as in ``GRPOConfig``.

    ``LossBatch.num_tokens`` is TRL's ``num_items_in_batch``: live tokens of the whole generation
    batch over all processes. ``LossBatch.is_weights`` is its ``importance_sampling_ratio``.

    Raises: OptionError for a value out of range.
    """

    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    """Above one it clips at ``1 + epsilon_high``; for ``cispo`` it is the cap itself."""
    delta: float | None = None
    beta: float = 0.0
    use_bias_correction_kl: bool = True
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    off_policy_mask_threshold: float | None = None
    top_entropy_quantile: float = 1.0
    entropy_coef: float = 0.0
    max_completion_length: int = 512
    gradient_accumulation_steps: int = 1
    steps_per_generation: int = 1
    num_processes: int = 1

    def __post_init__(self) -> None:
        choices("loss_type", self.loss_type, LOSS_TYPES)
        choices("importance_sampling_level", self.importance_sampling_level, ("token", "sequence"))
        for name in ("epsilon", "epsilon_high", "beta", "entropy_coef"):
            at_least(name, getattr(self, name), 0.0)
        for name in ("delta", "sapo_temperature_pos", "sapo_temperature_neg"):
            at_least(name, getattr(self, name), 0.0, above=True)
        for name in ("gradient_accumulation_steps", "steps_per_generation", "num_processes"):
            at_least(name, getattr(self, name), 1)
        at_least("max_completion_length", self.max_completion_length, 1)
        between("top_entropy_quantile", self.top_entropy_quantile, 0.0, 1.0)

    @property
    def high(self) -> float:
        """TRL's ``epsilon_high`` with its default."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def clip(self) -> Clip:
        """Where the ratio carries gradient; ``delta`` caps it before the clip is taken."""
        low, high = 1 - self.epsilon, 1 + self.high
        if self.delta is None:
            return Clip(low, high)
        return Clip(low, min(high, self.delta), max(high, self.delta))

    @property
    def is_sequence_level(self) -> bool:
        """Whether the loss moves a whole sequence's ratio."""
        return self.importance_sampling_level == "sequence" and self.loss_type != "vespo"

    @property
    def traits(self) -> Traits:
        """What this configuration allows."""
        coupled = {
            "sequence-level ratios": self.is_sequence_level,
            "VESPO weighs by a sequence's ratio": self.loss_type == "vespo",
            "off_policy_mask_threshold reads a sequence's mean": self.off_policy_mask_threshold
            is not None,
            "top_entropy_quantile reads every token's entropy": self.top_entropy_quantile < 1,
        }
        alive = {
            f"a KL term (beta={self.beta})": self.beta != 0,
            f"an entropy bonus (entropy_coef={self.entropy_coef})": self.entropy_coef != 0,
        }
        reasons = [reason for reason, holds in coupled.items() if holds]
        quantile = self.top_entropy_quantile < 1
        return Traits(
            known_before_forward=not quantile,
            coupled="; ".join(reasons),
            whole_sequence=len(reasons) > quantile,
            whole_batch="top_entropy_quantile is taken over all tokens" if quantile else "",
            reads_log_probs=self.beta != 0 or self.off_policy_mask_threshold is not None,
            keeps_alive=" and ".join(reason for reason, holds in alive.items() if holds),
        )

    def token_weights(self, batch: LossBatch) -> Tensor:
        """Mask over normaliser, (B, T)."""
        dtype, rows = batch.dtype, batch.mask.shape[0]
        accumulated = self.gradient_accumulation_steps
        if self.loss_type in ("grpo", "sapo"):
            return per_sequence(batch, dtype, rows * accumulated)
        if self.loss_type == "luspo":
            return per_token(batch, dtype, rows * accumulated)
        if self.loss_type == "dr_grpo":
            return per_token(batch, dtype, rows * self.max_completion_length * accumulated)
        if self.loss_type == "bnpo":
            return per_token(batch, dtype, batch.live_mask.sum().clamp(min=1) * accumulated)
        share = accumulated / self.steps_per_generation / self.num_processes
        return per_token(batch, dtype, count_tokens(batch) * share)

    def policy(self, log_probs: Tensor, batch: LossBatch) -> Term:
        """The policy-gradient part."""
        log_r = log_ratio(log_probs, batch)
        advantages = batch.token_advantages
        if self.loss_type == "vespo":
            phi = self._gamma_weights(log_r.detach(), batch)
            return Term(*detached(phi, advantages, log_probs))
        log_r = sequence_mean(log_r, batch) if self.is_sequence_level else log_r
        if self.loss_type == "cispo":
            return Term(*detached(torch.exp(log_r).clamp(max=self.high), advantages, log_probs))
        value, slope = self._surrogate(log_r, advantages)
        if self.is_sequence_level:
            spread = sequence_spread(batch, log_probs.dtype)
            return Term(value, sequence_slope=slope, spread=spread)
        return Term(value, slope)

    def _surrogate(self, log_r: Tensor, advantages: Tensor) -> Pair:
        if self.loss_type == "sapo":
            # As TRL has it: numbers, not tensors, so the temperature is fp32 whatever the dtype.
            tau = torch.where(advantages > 0, self.sapo_temperature_pos, self.sapo_temperature_neg)
            return soft_gate(log_r, advantages, tau)
        return self.clip.apply(log_r, advantages)

    def policy_bound(self, batch: LossBatch, ratio_limit: float) -> SlopeBound:
        """Bounds on the slopes over all ratios up to ``ratio_limit``."""
        advantages = batch.token_advantages
        if self.loss_type == "vespo":
            return SlopeBound(times_advantage(self._gamma_peak(advantages), advantages))
        if self.loss_type == "cispo":
            return SlopeBound(times_advantage(min(self.high, ratio_limit), advantages))
        if self.loss_type == "sapo":
            temperatures = self.sapo_temperature_pos, self.sapo_temperature_neg
            bound = soft_gate_bound(advantages, *temperatures)
        else:
            bound = self.clip.bound(advantages, ratio_limit)
        if self.is_sequence_level:
            spread = sequence_spread(batch, advantages.dtype)
            return SlopeBound(sequence_slope=bound, spread=spread)
        return SlopeBound(bound)

    def gate(self, log_probs: Tensor, batch: LossBatch) -> Tensor | None:
        """Importance weights, off-policy sequence mask and entropy mask, multiplied."""
        factors = [self.gate_bound(batch)]
        if self.off_policy_mask_threshold is not None:
            factors.append(masks.off_policy(log_probs, batch, self.off_policy_mask_threshold))
        if self.top_entropy_quantile < 1:
            factors.append(masks.high_entropy(batch, self.top_entropy_quantile))
        return masks.product(factors)

    def gate_bound(self, batch: LossBatch) -> Tensor | None:
        """The importance weights; the masks can only lower them. VESPO has them in its weight."""
        return None if self.loss_type == "vespo" else batch.is_weights

    def divergence(self, log_probs: Tensor, batch: LossBatch) -> Term | None:
        """``beta·k3``, times the ratio with bias correction: then the slope is ``r(l − q)``."""
        if self.beta == 0:
            return None
        d = inside(log_probs - require(batch, "ref_log_probs", "beta"), batch)
        value, slope = kl.k3(d)
        if not self.use_bias_correction_kl:
            return Term(self.beta * value, self.beta * slope)
        log_r = log_ratio(log_probs, batch)
        if self.importance_sampling_level == "token":
            ratio = torch.exp(log_r)
            return Term(self.beta * value * ratio, self.beta * (ratio * d).detach())
        ratio = torch.exp(sequence_mean(log_r, batch))
        held = self.beta * ratio.detach()
        spread = sequence_spread(batch, log_probs.dtype)
        return Term(self.beta * value * ratio, held * slope, held * value.detach(), spread)

    def divergence_bound(self) -> float:
        """Infinite with a KL term: k3's slope is unbounded."""
        return math.inf if self.beta else 0.0

    def entropy_weights(self, batch: LossBatch) -> Tensor | None:
        """``−entropy_coef`` over the tokens the bonus acts on, (B, T)."""
        if self.entropy_coef == 0:
            return None
        acts_on = batch.live_mask
        if self.top_entropy_quantile < 1:
            acts_on = masks.high_entropy(batch, self.top_entropy_quantile).bool()
        count = acts_on.sum().clamp(min=1) * self.gradient_accumulation_steps
        return -self.entropy_coef * acts_on.to(batch.dtype) / count

    def _gamma(self, advantages: Tensor) -> tuple[Tensor, Tensor]:
        gains = advantages >= 0
        k = torch.where(gains, self.vespo_k_pos, self.vespo_k_neg)
        rate = torch.where(gains, self.vespo_lambda_pos, self.vespo_lambda_neg).clamp(min=1e-4)
        return k.to(advantages.dtype), rate.to(advantages.dtype)

    def _gamma_weights(self, log_r: Tensor, batch: LossBatch) -> Tensor:
        """VESPO: ``φ = exp(λ + k·log W − λW)``, W the product of a sequence's ratios, (B, 1)."""
        total = log_r.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).sum(-1, keepdim=True)
        if batch.is_weights is not None:
            logs = torch.log(batch.is_weights).clamp(MIN_LOG_WEIGHT, MAX_LOG_WEIGHT)
            logs = inside(logs, batch) if logs.shape == batch.mask.shape else logs
            total = total + logs.sum(-1, keepdim=True)
        log_w = total.clamp(MIN_LOG_WEIGHT, MAX_LOG_WEIGHT)
        k, rate = self._gamma(batch.token_advantages)
        phi = torch.exp(rate + k * log_w - rate * torch.exp(log_w))
        return phi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)

    def _gamma_peak(self, advantages: Tensor) -> Tensor:
        """The largest φ: the exponent is concave in log W with its top at W = k/λ."""
        k, rate = self._gamma(advantages)
        log_w = torch.log(k / rate).clamp(MIN_LOG_WEIGHT, MAX_LOG_WEIGHT)
        return torch.exp(rate + k * log_w - rate * torch.exp(log_w))
