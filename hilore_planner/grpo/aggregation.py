"""How token losses become one scalar: a weight for each token, mask over normaliser.

Every aggregation of the supported frameworks is linear in the token losses, so a (B, T) tensor of
weights says all of it. Legend: ``m`` the mask, ``L_i`` its sum over sequence i, at least one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.ratio import lengths

Count = Tensor | float


def per_token(batch: LossBatch, dtype: torch.dtype, normalizer: Count) -> Tensor:
    """``m/N``: every token alike, (B, T)."""
    return batch.live_mask.to(dtype) / normalizer


def per_sequence(batch: LossBatch, dtype: torch.dtype, normalizer: Count) -> Tensor:
    """``m/(L_i·N)``: every sequence alike, its tokens sharing one over its length, (B, T)."""
    return batch.live_mask.to(dtype) / lengths(batch, dtype) / normalizer


def count_tokens(batch: LossBatch) -> Count:
    """The batch's ``num_tokens``, else its live tokens, at least one."""
    if batch.num_tokens is not None:
        return batch.num_tokens
    return batch.live_mask.sum().clamp(min=1)


def count_sequences(batch: LossBatch) -> Count:
    """The batch's ``num_sequences``, else its sequences with a live token, at least one."""
    if batch.num_sequences is not None:
        return batch.num_sequences
    return batch.live_mask.any(-1).sum().clamp(min=1)
