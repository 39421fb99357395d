"""Random batches with padding, clipped tokens, zero advantages and empty rows; losses to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.registry import LOSSES, make_loss
from hilore_planner.grpo.trl import CLIPPED
from hilore_planner.grpo.verl import AGGREGATIONS, KL_TYPES


@dataclass(frozen=True)
class Drawn:
    log_probs: Tensor
    batch: LossBatch


def random_batch(
    seed: int,
    *,
    rows: int = 6,
    width: int = 5,
    drift: float = 0.4,
    dtype: torch.dtype = torch.float64,
    by_token: bool = False,
) -> Drawn:
    """Row 1 has zero advantage, the last row no live token; the others have random lengths."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    log_probs = -noise(rows, width).abs() - 0.05
    advantages = noise(rows, width) if by_token else noise(rows)
    advantages[1] = 0.0
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    lengths[-1] = 0
    weights = 0.5 + torch.rand(rows, width, generator=generator, dtype=dtype)
    weights[0, -1] = 0.0
    batch = LossBatch(
        advantages=advantages,
        mask=(torch.arange(width) < lengths).long(),
        old_log_probs=log_probs + drift * noise(rows, width),
        ref_log_probs=log_probs + 0.3 * noise(rows, width),
        sampling_log_probs=log_probs + 0.2 * noise(rows, width),
        is_weights=weights,
        entropies=noise(rows, width).abs(),
    )
    return Drawn(log_probs, batch)


drawn = st.builds(
    random_batch,
    st.integers(0, 2**31),
    rows=st.integers(3, 7),
    width=st.integers(1, 6),
    drift=st.sampled_from([0.0, 0.3, 1.5]),
    by_token=st.booleans(),
)

REQUIRED: dict[str, dict[str, Any]] = {
    "verl/dro": {"dro_beta": 0.3},
    "verl/clip_cov": {"clip_cov_lb": 0.1, "clip_cov_ratio": 0.2},
    "verl/kl_cov": {"kl_cov_ratio": 0.2},
}


def plain(name: str) -> PolicyLoss:
    """The loss called ``name`` with nothing switched on."""
    return make_loss(name, **REQUIRED.get(name, {}))


def varied() -> list[PolicyLoss]:
    """Every loss plain, and every option that changes a derivative, at least once per family."""
    losses = [plain(name) for name in LOSSES]
    for name in (n for n in LOSSES if n.startswith("trl/")):
        losses.append(make_loss(name, importance_sampling_level="sequence", epsilon_high=0.3))
        for level in ("token", "sequence"):
            base = {"importance_sampling_level": level}
            losses.append(make_loss(name, **base, beta=0.1))
            losses.append(make_loss(name, **base, beta=0.1, use_bias_correction_kl=False))
        losses.append(make_loss(name, top_entropy_quantile=0.4, entropy_coef=0.1))
        losses.append(make_loss(name, off_policy_mask_threshold=0.05))
    for kind in CLIPPED:
        losses += [make_loss(f"trl/{kind}", delta=delta) for delta in (0.9, 1.1, 1.5)]
    for aggregation in AGGREGATIONS:
        for mode in ("verl/vanilla", "verl/gspo", "verl/sapo"):
            losses.append(make_loss(mode, loss_agg_mode=aggregation, clip_ratio_high=0.3))
    for kind in KL_TYPES:
        losses.append(make_loss("verl/vanilla", use_kl_loss=True, kl_loss_type=kind))
    for name in ("openrlhf/ppo", "openrlhf/gspo"):
        losses.append(make_loss(name, dual_clip=1.4))
        losses += [make_loss(name, kl_coef=0.1, kl_estimator=k) for k in ("k1", "k2", "k3")]
        losses.append(make_loss(name, kl_coef=0.1, kl_unbiased_gradient=True, entropy_coef=0.1))
        for level in ("token", "seq"):
            losses.append(make_loss(name, is_correction_level=level))
    return losses
