"""The token-level clipped loss in TRL's ``grpo`` and ``dapo`` forms, traceable by Dynamo.

Shapes: ``B`` sequences of ``T`` response tokens.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from hilore_planner.errors import OptionError

LossType = Literal["grpo", "dapo"]


def token_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    loss_type: LossType = "dapo",
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    normalizer: float | Tensor | None = None,
) -> Tensor:
    """The scalar to call ``backward`` on.

    Shapes: ``log_probs``, ``old_log_probs`` and ``mask`` are (B, T); ``advantages`` is (B,) or
    (B, T). ``normalizer`` is what the summed loss is divided by: for ``grpo`` the number of
    sequences of the optimizer step (each weighted by one over its own length), for ``dapo`` its
    number of live tokens; ``None`` counts them in this batch.

    Raises: OptionError for another ``loss_type``.
    Source: trl 1.16 ``GRPOTrainer._compute_loss``.
    """
    mask = mask.to(log_probs.dtype)
    advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
    ratio = torch.exp(log_probs - old_log_probs)
    clipped = torch.clamp(ratio, 1 - epsilon_low, 1 + epsilon_high)
    loss = -torch.min(ratio * advantages, clipped * advantages) * mask
    if loss_type == "grpo":
        per_sequence = loss.sum(-1) / mask.sum(-1).clamp(min=1.0)
        return per_sequence.sum() / (mask.shape[0] if normalizer is None else normalizer)
    if loss_type == "dapo":
        return loss.sum() / (mask.sum().clamp(min=1.0) if normalizer is None else normalizer)
    raise OptionError(f"loss_type is {loss_type!r}; accepted: {', '.join(get_args(LossType))}")
