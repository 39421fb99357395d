"""How much the rows of an activation count: their squared exposure, by sequence.

Shapes: S sequences; padded activations are (S, ...) or (S·T, F), packed ones have a dimension of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hilore_planner.grpo.exposure import Exposure


@dataclass(frozen=True, slots=True)
class SequenceWeights:
    """Mean squared exposure of each sequence's rows, relative to the mean over all rows.

    Attributes:
        weights: (S,), their mean over rows is one.
        rows: (S,), rows of each sequence.
        is_packed: whether activations have the sequences' rows end to end.
        total: squared exposure summed over all rows.
    """

    weights: Tensor
    rows: Tensor
    is_packed: bool
    total: float

    @classmethod
    def of(cls, exposure: Exposure) -> Self:
        """Of one microbatch; equal weights where nothing is exposed."""
        rows = exposure.row_counts
        squares = exposure.sequence_squares.double()
        mean = squares.sum() / rows.sum()
        weights = squares / rows.clamp(min=1) / mean if mean > 0 else torch.ones_like(squares)
        return cls(weights, rows, exposure.cu_seqlens is not None, float(squares.sum()))

    @property
    def shares(self) -> list[float]:
        """Of the batch's squared exposure, by sequence, the most exposed first."""
        squares = self.weights * self.rows
        found: list[float] = (squares / squares.sum()).sort(descending=True).values.tolist()
        return found

    def over(self, value: Tensor) -> Tensor:
        """Weights that broadcast over the rows of ``value``; ones where it has no dimension of sequences."""
        weights, sequences = self.weights.to(value.device), self.weights.numel()
        if self.is_packed:
            by_row = torch.repeat_interleave(weights, self.rows.to(value.device))
            return _along(by_row, value)
        if value.dim() == 2 and value.shape[0] % sequences == 0:  # (S·T, F), or (S, F)
            return _along(weights.repeat_interleave(value.shape[0] // sequences), value)
        return _along(weights, value)


def _along(weights: Tensor, value: Tensor) -> Tensor:
    """``weights`` along the first dimension of their length, features aside."""
    for dim, size in enumerate(value.shape[:-1]):
        if size == weights.numel():
            return weights.view([-1 if d == dim else 1 for d in range(value.dim())])
    return weights.new_ones([1] * value.dim())


def squared_error(value: Tensor, changed: Tensor, weights: Tensor | None) -> Tensor:
    """Squared relative error of ``changed``, rows weighted: a scalar in fp64 on the device."""
    difference = _squared_rows(changed - value)
    if weights is not None:
        difference = difference * weights
    whole = _squared_rows(value).sum()
    return difference.sum() / whole.clamp(min=torch.finfo(torch.float64).tiny)


def _squared_rows(value: Tensor) -> Tensor:
    """Squared norm of each row, (..., 1) in fp64, summed in fp32 as it is read."""
    norms = torch.linalg.vector_norm(value, dim=-1, keepdim=True, dtype=torch.float32)
    squares: Tensor = norms.double().square()
    return squares
