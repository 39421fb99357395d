"""The numbers a loss is computed from.

Shapes: ``B`` sequences of ``T`` rows. Row ``t`` is the position that *predicts* token ``t``, so a
row's log-probability, mask and coefficient carry the same index.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hilore_planner.errors import OptionError


@dataclass(frozen=True, slots=True)
class LossBatch:
    """One microbatch, padded to (B, T); what a loss does not use may stay None.

    Raises: OptionError for a tensor whose shape does not fit ``mask``.
    """

    advantages: Tensor
    """(B,), one per sequence, or (B, T)."""
    mask: Tensor
    """(B, T), non-zero where a token enters the loss."""
    old_log_probs: Tensor | None = None
    """(B, T) under the policy that the ratio is taken to; None says the ratio is one."""
    ref_log_probs: Tensor | None = None
    """(B, T) under the reference policy of a KL term."""
    sampling_log_probs: Tensor | None = None
    """(B, T) under the engine that sampled."""
    is_weights: Tensor | None = None
    """(B, T) or (B, 1) importance weights between the sampling engine and the old policy."""
    entropies: Tensor | None = None
    """(B, T) of the current policy, differentiable where an entropy bonus is."""
    num_tokens: Tensor | float | None = None
    """Live tokens that the loss is normalised by, where that is not this batch's own count."""
    num_sequences: Tensor | float | None = None
    """Sequences that the loss is normalised by, where that is not this batch's own count."""
    weights: Tensor | None = None
    """(B, T) what each token's loss is multiplied by before the sum. None: by the loss's own
    aggregation. Given when rows were dropped, so that the full batch's normalisers stay."""

    def __post_init__(self) -> None:
        if self.mask.dim() != 2:
            raise OptionError(f"mask has shape {tuple(self.mask.shape)}; accepted: (B, T)")
        rows, width = self.mask.shape
        accepted: dict[str, list[tuple[int, ...]]] = {
            "advantages": [(rows,), (rows, width)],
            "is_weights": [(rows, width), (rows, 1)],
        }
        for name in TENSOR_FIELDS:
            value = getattr(self, name)
            shapes = accepted.get(name, [(rows, width)])
            if value is not None and tuple(value.shape) not in shapes:
                raise OptionError(
                    f"{name} has shape {tuple(value.shape)}; with this mask accepted: "
                    + " or ".join(map(str, shapes))
                )

    @property
    def live_mask(self) -> Tensor:
        """``mask`` as booleans, (B, T)."""
        return self.mask != 0

    @property
    def dtype(self) -> torch.dtype:
        """What weights and coefficients are computed in: the advantages', at least fp32."""
        return torch.promote_types(self.advantages.dtype, torch.float32)

    @property
    def token_advantages(self) -> Tensor:
        """Advantages that broadcast over tokens: (B, 1) or (B, T)."""
        advantages = self.advantages.to(self.dtype)
        return advantages.unsqueeze(1) if advantages.dim() == 1 else advantages


TENSOR_FIELDS = tuple(
    f.name for f in fields(LossBatch) if f.name not in ("num_tokens", "num_sequences")
)
"""The fields that have a leading dimension of sequences."""


def require(batch: LossBatch, name: str, reader: str) -> Tensor:
    """The tensor ``name`` of ``batch``, which ``reader`` cannot do without.

    Raises: OptionError if it is None.
    """
    value: Tensor | None = getattr(batch, name)
    if value is None:
        raise OptionError(f"{reader} reads {name}, which the batch does not have; pass {name}=")
    return value


def check_cu_seqlens(cu_seqlens: Tensor, nnz: int) -> None:
    """Raise OptionError unless ``cu_seqlens`` (S + 1,) delimits ``nnz`` packed rows."""
    steps = cu_seqlens.diff()
    fits = cu_seqlens.dim() == 1 and cu_seqlens.numel() > 1 and int(cu_seqlens[0]) == 0
    if not fits or int(cu_seqlens[-1]) != nnz or bool((steps < 0).any()):
        raise OptionError(
            f"cu_seqlens is {cu_seqlens.tolist()}; accepted: ascending, from 0 to the number of "
            f"packed rows, {nnz}"
        )


def pad_packed(values: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Rows of packed sequences, (nnz, ...), as (S, longest, ...), filled with zeros.

    Raises: OptionError for a ``cu_seqlens`` that does not delimit them.
    """
    check_cu_seqlens(cu_seqlens, values.shape[0])
    lengths = cu_seqlens.diff()
    inside = row_mask(lengths)
    padded = values.new_zeros((*inside.shape, *values.shape[1:]))
    padded[inside] = values
    return padded


def pack_padded(values: Tensor, lengths: Tensor) -> Tensor:
    """The first ``lengths`` (S,) rows of each sequence of (S, T, ...), end to end, (nnz, ...)."""
    return values[row_mask(lengths, values.shape[1])]


def packed_batch(
    cu_seqlens: Tensor, *, advantages: Tensor, mask: Tensor, **rows: Tensor
) -> LossBatch:
    """A padded batch from packed rows.

    Shapes: ``mask`` and further fields of :class:`LossBatch` are (nnz,), delimited by ``cu_seqlens``
    (S + 1,); ``advantages`` is (S,) or (nnz,). Sequences come back padded to the longest.

    Raises: OptionError for a ``cu_seqlens`` that does not delimit the rows.
    """
    if advantages.shape[0] != cu_seqlens.shape[0] - 1:
        advantages = pad_packed(advantages, cu_seqlens)
    padded = {name: pad_packed(value, cu_seqlens) for name, value in rows.items()}
    return LossBatch(advantages=advantages, mask=pad_packed(mask, cu_seqlens), **padded)


def row_mask(lengths: Tensor, width: int | None = None) -> Tensor:
    """(S, width) booleans, True in the first ``lengths`` (S,) columns; width: the longest."""
    columns = int(lengths.max()) if width is None else width
    return torch.arange(columns, device=lengths.device) < lengths.unsqueeze(1)
