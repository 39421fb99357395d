"""Rows whose gradient is exactly zero, left out of an optimizer step without changing it.

A sequence is dead when every coefficient of it must be zero whatever the forward yields: zero
advantage, zero importance weight, nothing unmasked. After its last coefficient that can differ from
zero a live sequence has a dead suffix, since attention is causal. Dropped rows stay in every
normaliser, because the batch that is left carries the full batch's weights. The optimizer still steps, even
if nothing is left: its momentum and weight decay act without a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.batch import TENSOR_FIELDS, LossBatch, check_cu_seqlens, require
from hilore_planner.grpo.microbatches import Microbatch


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """What is left of a batch of B sequences of T rows: R sequences of W rows."""

    batch: LossBatch
    """(R, W), its ``weights`` those of the full batch."""
    kept: Tensor
    """(R,) positions in the full batch, ascending."""
    lengths: Tensor
    """(R,) rows of each up to its last that can have a coefficient; W is the largest."""
    sequences: int
    """B."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing has a gradient; the optimizer must step all the same."""
        return self.kept.numel() == 0

    def padded(self, values: Tensor) -> Tensor:
        """The rows that are left of a tensor (B, T, ...), (R, W, ...)."""
        return fit(values[self.kept], self.batch.mask.shape[1])

    def packed(
        self, values: Tensor, cu_seqlens: Tensor, *, width: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The rows that are left of a packed tensor (nnz, ...), and their ``cu_seqlens``.

        With ``width`` rows of zeros are added up to that many, outside any sequence.

        Raises: OptionError if ``cu_seqlens`` is not that of the full batch.
        """
        check_cu_seqlens(cu_seqlens, values.shape[0])
        if cu_seqlens.numel() != self.sequences + 1:
            raise OptionError(
                f"cu_seqlens delimits {cu_seqlens.numel() - 1} sequences; accepted: those of the "
                f"full batch, {self.sequences}"
            )
        starts, lengths = cu_seqlens[:-1][self.kept].tolist(), self.lengths.tolist()
        spans = [values[a : a + n] for a, n in zip(starts, lengths, strict=True)]
        missing = max(width - sum(lengths), 0)
        rows = torch.cat([*spans, values.new_zeros((missing, *values.shape[1:]))])
        ends = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))
        return rows, ends.to(cu_seqlens.dtype)

    def take(self, microbatch: Microbatch) -> LiveBatch:
        """The sequences of one microbatch; a padded one in its shape.

        Rows of padding repeat the first sequence with weights and mask of zero.
        """
        real = len(microbatch.sequences)
        rows = max(real, microbatch.height)
        sequences = [*microbatch.sequences, *[microbatch.sequences[0]] * (rows - real)]
        chosen = torch.tensor(sequences, device=self.kept.device)
        batch = select(self.batch, chosen, microbatch.width)
        weights = require(batch, "weights", "LiveBatch.take")
        shown = (torch.arange(rows, device=chosen.device) < real).unsqueeze(1)
        batch = replace(batch, mask=batch.mask * shown, weights=weights * shown)
        return LiveBatch(batch, self.kept[chosen], self.lengths[chosen], self.sequences)


def blocked_by(loss: PolicyLoss, *, auxiliary_loss: bool = False) -> str:
    """Why rows of zero advantage may not be dropped under ``loss``; empty if they may."""
    traits = loss.traits
    reasons = [traits.keeps_alive, traits.whole_batch]
    if auxiliary_loss:
        reasons.append("an auxiliary loss on every token (as of a router)")
    return " and ".join(reason for reason in reasons if reason)


def drop_dead(loss: PolicyLoss, batch: LossBatch, *, auxiliary_loss: bool = False) -> LiveBatch:
    """Drop the dead sequences and the dead suffixes of one optimizer step's batch.

    ``batch`` is all that the step's normalisers see on this rank. ``auxiliary_loss`` says that the model
    adds a loss of its own on every token.

    Raises: OptionError if the loss gives rows of zero advantage a gradient, or takes statistics
    over rows that would be dropped.
    """
    reason = blocked_by(loss, auxiliary_loss=auxiliary_loss)
    if reason:
        raise OptionError(f"no row can be dropped: {reason} needs all of them; use the whole batch")
    reachable = loss.coefficient_bound(batch) != 0
    live = reachable.any(-1)
    ends = batch.live_mask if loss.traits.whole_sequence else reachable
    lengths = last_true(ends)[live]
    kept = torch.nonzero(live)[:, 0]
    width = int(lengths.max()) if kept.numel() else 0
    weighted = replace(batch, weights=loss.weights(batch).expand_as(batch.mask))
    return LiveBatch(select(weighted, kept, width), kept, lengths, batch.mask.shape[0])


def last_true(where: Tensor) -> Tensor:
    """One past the last True of each row of (B, T), zero if there is none, (B,)."""
    columns = torch.arange(1, where.shape[1] + 1, device=where.device)
    return (where * columns).amax(-1)


def select(batch: LossBatch, rows: Tensor, width: int) -> LossBatch:
    """The batch of some rows, cut or padded with zeros to ``width`` columns."""
    full = batch.mask.shape[1]

    def chosen(values: Tensor) -> Tensor:
        has_columns = values.dim() > 1 and values.shape[1] == full
        return fit(values[rows], width) if has_columns else values[rows]

    fields = ((name, getattr(batch, name)) for name in TENSOR_FIELDS)
    changes: dict[str, Any] = {name: chosen(v) for name, v in fields if v is not None}
    return replace(batch, **changes)


def fit(values: Tensor, width: int) -> Tensor:
    """(B, T, ...) cut or padded with zeros to (B, ``width``, ...)."""
    missing = width - values.shape[1]
    if missing <= 0:
        return values[:, :width]
    padding = values.new_zeros((values.shape[0], missing, *values.shape[2:]))
    return torch.cat([values, padding], dim=1)
