"""verl's ``policy_loss.loss_mode``: token losses with slopes, and bounds on the slopes.

Legend: ``cfg`` the configuration, ``logp`` log-probabilities (B, T).
Source: ``verl/trainer/ppo/core_algos.py``, ``register_policy_loss``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.ratio import bounded, inside, log_ratio, sequence_mean, sequence_spread
from hilore_planner.grpo.surrogates import (
    Clip,
    by_sign,
    detached,
    soft_gate,
    soft_gate_bound,
    times_advantage,
)
from hilore_planner.grpo.term import SlopeBound, Term

if TYPE_CHECKING:
    from hilore_planner.grpo.verl import VerlLoss

LOG_LIMIT = 20.0
"""What verl clamps a token's log-ratio at."""
SEQUENCE_LOG_LIMIT = 10.0
"""What GSPO clamps a sequence's log-ratio at, from above."""


def vanilla(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """PPO with dual clip: the loss of a negative advantage stops at ``clip_ratio_c``."""
    log_r, free = bounded(log_ratio(logp, batch), LOG_LIMIT)
    value, slope = dual_clip(cfg).apply(log_r, batch.token_advantages)
    return Term(value, slope * free)


def dual_clip(cfg: VerlLoss) -> Clip:
    """The clip of ``vanilla``."""
    return Clip(cfg.clip.low, cfg.clip.high, cfg.clip_ratio_c)


def gspo(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """The sequence's ratio as a value, each token's own gradient through it."""
    mean = sequence_mean(log_ratio(logp, batch), batch).detach()
    value, slope = sequence_clip(cfg).apply(logp - logp.detach() + mean, batch.token_advantages)
    return Term(value, slope)


def sequence_clip(cfg: VerlLoss) -> Clip:
    """The clip of ``gspo``, whose ratio is capped."""
    return Clip(cfg.clip.low, cfg.clip.high, math.exp(SEQUENCE_LOG_LIMIT))


def sapo(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """A sigmoid gate in place of the clip."""
    log_r, free = bounded(log_ratio(logp, batch), LOG_LIMIT)
    value, slope = soft_gate(
        log_r, batch.token_advantages, by_sign(batch.token_advantages, cfg.tau_pos, cfg.tau_neg)
    )
    return Term(value, slope * free)


def gpg(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """REINFORCE: no ratio."""
    return Term(*detached(torch.ones_like(logp), batch.token_advantages, logp))


def cispo(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """The ratio clipped on both sides, as a constant."""
    log_r, _ = bounded(log_ratio(logp, batch), LOG_LIMIT)
    factor = torch.exp(log_r).clamp(cfg.clip.low, cfg.clip.high)
    return Term(*detached(factor, batch.token_advantages, logp))


def dppo_tv(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """A trust region on the token's probability: total variation."""
    p, old = probabilities(logp, batch)
    gains = batch.token_advantages > 0
    valid = torch.where(gains, p - old <= cfg.clip_ratio_high, p - old >= -cfg.clip_ratio_low)
    return truncated(cfg, logp, batch, valid)


def dppo_kl(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """A trust region on the token's probability: binary KL divergence."""
    p, old = probabilities(logp, batch)
    odds = torch.log((1 - old + 1e-8) / (1 - p + 1e-8))
    divergence = -old * log_ratio(logp, batch).detach() + (1 - old) * odds
    up = (divergence <= cfg.clip_ratio_high) | (p <= old)
    down = (divergence <= cfg.clip_ratio_low) | (p >= old)
    return truncated(cfg, logp, batch, torch.where(batch.token_advantages > 0, up, down))


def probabilities(logp: Tensor, batch: LossBatch) -> tuple[Tensor, Tensor]:
    """Of each token now and under the old policy, without gradient."""
    old = logp if batch.old_log_probs is None else inside(batch.old_log_probs, batch)
    return torch.exp(logp.detach()), torch.exp(old.detach())


def truncated(cfg: VerlLoss, logp: Tensor, batch: LossBatch, valid: Tensor) -> Term:
    """The ratio, cut at ``clip_ratio_c`` and zero where not ``valid``, as a constant."""
    log_r, _ = bounded(log_ratio(logp, batch), LOG_LIMIT)
    factor = torch.exp(log_r).clamp(max=cfg.clip_ratio_c) * valid
    return Term(*detached(factor, batch.token_advantages, logp))


def clip_cov(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """PPO in which random tokens of high covariance lose their loss; the slope is undrawn."""
    log_r = log_ratio(logp, batch)
    value, slope = cfg.clip.apply(log_r, batch.token_advantages)
    outside = (
        log_r.exp() - log_r.exp().clamp(cfg.clip.low, cfg.clip.high)
    ) * batch.token_advantages
    held = covariance(logp, batch).masked_fill(outside > 0, -math.inf)
    drawn = (held < cfg.clip_cov_ub) & (held > cfg.clip_cov_lb) & batch.live_mask
    candidates = torch.nonzero(drawn)
    count = max(int(cfg.clip_cov_ratio * batch.live_mask.sum().item()), 1)
    chosen = candidates[torch.randperm(len(candidates))[:count]]
    kept = torch.ones_like(logp)
    kept[chosen[:, 0], chosen[:, 1]] = 0
    return Term(value * kept, slope)


def covariance(logp: Tensor, batch: LossBatch) -> Tensor:
    """Of advantage and log-probability, each less its mean over live tokens, (B, T)."""
    mask, values = batch.live_mask, logp.detach()
    advantages = batch.token_advantages.expand_as(logp)
    return (advantages - advantages[mask].mean()) * (values - values[mask].mean())


def kl_cov(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """No clip; ``ppo_kl_coef·|l − o|`` on the tokens of the highest covariance."""
    log_r = log_ratio(logp, batch)
    value, slope = Clip(0.0, math.inf).apply(log_r, batch.token_advantages)
    live = torch.nonzero(batch.live_mask)
    count = min(max(1, int(len(live) * cfg.kl_cov_ratio)), len(live))
    top = live[covariance(logp, batch)[batch.live_mask].topk(count).indices]
    penalty = torch.zeros_like(logp)
    penalty[top[:, 0], top[:, 1]] = cfg.ppo_kl_coef
    return Term(value + penalty * log_r.abs(), slope + penalty * torch.sign(log_r.detach()))


def geo_mean(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """GMPO: the geometric mean of clipped ratios times the sequence's mean advantage."""
    log_r, advantages = log_ratio(logp, batch), batch.token_advantages
    low, high = -cfg.clip_ratio_low, cfg.clip_ratio_high
    clipped = torch.where(advantages > 0, log_r.clamp(max=high), log_r.clamp(min=low))
    clipped = torch.where(advantages == 0, torch.zeros_like(clipped), clipped)
    value = -sequence_advantage(batch) * torch.exp(sequence_mean(clipped, batch))
    held = log_r.detach()
    free = torch.where(advantages > 0, held <= high, (held >= low) & (advantages < 0))
    spread = sequence_spread(batch, logp.dtype) * free
    return Term(value, sequence_slope=value.detach(), spread=spread)


def sequence_advantage(batch: LossBatch) -> Tensor:
    """Mean advantage over each sequence's live tokens, (B, 1)."""
    return sequence_mean(batch.token_advantages.expand_as(batch.mask), batch)


def dro(cfg: VerlLoss, logp: Tensor, batch: LossBatch) -> Term:
    """``−A·l + β/2·(l − o)²``."""
    beta = cfg.dro_beta or 0.0
    log_r = log_ratio(logp, batch)
    value, slope = detached(torch.ones_like(logp), batch.token_advantages, logp)
    return Term(value + 0.5 * beta * log_r.square(), slope + beta * log_r.detach())


Bound = Callable[["VerlLoss", LossBatch, float], SlopeBound]


def clip_bound(clip: Callable[[VerlLoss], Clip]) -> Bound:
    """Of a mode that clips."""
    return lambda cfg, batch, limit: SlopeBound(clip(cfg).bound(batch.token_advantages, limit))


def factor_bound(factor: Callable[[VerlLoss], float]) -> Bound:
    """Of a mode whose slope is at most a constant times the advantage."""
    return lambda cfg, batch, limit: SlopeBound(
        times_advantage(min(factor(cfg), limit), batch.token_advantages)
    )


def sapo_bound(cfg: VerlLoss, batch: LossBatch, limit: float) -> SlopeBound:
    """The gate's highest slope, by the sign of the advantage."""
    return SlopeBound(soft_gate_bound(batch.token_advantages, cfg.tau_pos, cfg.tau_neg))


def kl_cov_bound(cfg: VerlLoss, batch: LossBatch, limit: float) -> SlopeBound:
    """Unclipped; any token may be among those penalised."""
    return SlopeBound(times_advantage(limit, batch.token_advantages) + cfg.ppo_kl_coef)


def geo_mean_bound(cfg: VerlLoss, batch: LossBatch, limit: float) -> SlopeBound:
    """Clipped above where every live token gains; a losing token's ratio has no upper clip."""
    advantages = batch.token_advantages.expand_as(batch.mask)
    losing = (inside(advantages, batch) < 0).any(-1, keepdim=True)
    mean = sequence_advantage(batch)
    highest = mean.new_full((), min(math.exp(cfg.clip_ratio_high), limit))
    bound = times_advantage(torch.where(losing, mean.new_full((), limit), highest), mean)
    return SlopeBound(
        sequence_slope=bound, spread=sequence_spread(batch, advantages.dtype) * (advantages != 0)
    )


def dro_bound(cfg: VerlLoss, batch: LossBatch, limit: float) -> SlopeBound:
    """``|A|`` and the penalty's slope at the ratio's limit."""
    slope = batch.token_advantages.abs() + (cfg.dro_beta or 0.0) * math.log(limit)
    return SlopeBound(slope)


@dataclass(frozen=True, slots=True)
class Mode:
    """One ``loss_mode``; reasons as in :class:`hilore_planner.grpo.base.Traits`."""

    policy: Callable[[VerlLoss, Tensor, LossBatch], Term]
    bound: Bound
    coupled: str = ""
    whole_batch: str = ""
    approximate: str = ""


_COV = "covariances are taken about the batch's means"

MODES: dict[str, Mode] = {
    "vanilla": Mode(vanilla, clip_bound(dual_clip)),
    "gspo": Mode(gspo, clip_bound(sequence_clip), coupled="sequence-level ratios"),
    "sapo": Mode(sapo, sapo_bound),
    "gpg": Mode(gpg, factor_bound(lambda cfg: 1.0)),
    "cispo": Mode(cispo, factor_bound(lambda cfg: cfg.clip.high)),
    "dppo_tv": Mode(dppo_tv, factor_bound(lambda cfg: cfg.clip_ratio_c)),
    "dppo_kl": Mode(dppo_kl, factor_bound(lambda cfg: cfg.clip_ratio_c)),
    "clip_cov": Mode(
        clip_cov,
        clip_bound(lambda cfg: cfg.clip),
        coupled=_COV,
        whole_batch=_COV,
        approximate="which tokens lose their loss is drawn at random",
    ),
    "kl_cov": Mode(kl_cov, kl_cov_bound, coupled=_COV, whole_batch=_COV),
    "geo_mean": Mode(geo_mean, geo_mean_bound, coupled="a geometric mean over the sequence"),
    "dro": Mode(dro, dro_bound),
}
