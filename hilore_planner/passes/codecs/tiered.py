"""Rows in tiers: each tier of a batch's sequences is kept by a codec of its own, as it is, or not at all.

Rows stand in order of exposure (``hilore_planner.grpo.tiers``), so a tier is a slice. Values are split where their rows
are the batch's, and only there: (B, T, ...) and (B, ..., T, F) along B, (B·T, ...) along the rows of whole sequences;
packed, (N, ...) and (1, N, ...) along N.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from hilore_planner.codec_names import TierNames
from hilore_planner.passes.codecs.base import Codec, is_wide_float


@dataclass(frozen=True, slots=True)
class Store:
    """A tier that is kept as it is."""

    name: str = "store"
    num_parts: int = 1
    relative_error: float = 0.0
    is_lossless: bool = True

    def accepts(self, value: Tensor) -> bool:
        """Any value."""
        return True

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """All of it."""
        return math.prod(shape) * dtype.itemsize

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """The value."""
        return (x,)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """The value."""
        return parts[0]


@dataclass(frozen=True, slots=True)
class Tiered:
    """``kept[i]`` keeps the sequences ``names.stops[i - 1]`` to ``names.stops[i]``.

    Where the last tier is dropped, ``kept`` is one shorter: its rows come back as zeros, which is right where nothing
    depends on them.
    """

    names: TierNames
    kept: tuple[Codec, ...]

    @property
    def name(self) -> str:
        """As ``hilore_planner.codec_names`` reads it."""
        return str(self.names)

    @property
    def num_parts(self) -> int:
        """All tiers' together."""
        return sum(tier.num_parts for tier in self.kept)

    @property
    def is_lossless(self) -> bool:
        """Whether every tier is."""
        return not self._drops and all(tier.is_lossless for tier in self.kept)

    @property
    def relative_error(self) -> float:
        """Where all rows matter the same."""
        stops = (0, *self.names.stops)
        return self.error([(b - a) / stops[-1] for a, b in pairwise(stops)])

    def error(self, shares: Sequence[float]) -> float:
        """Relative error where tier i has ``shares[i]`` of the sum of squared exposure over rows.

        The root of the shares' mean of squared errors: in the gradient an error in a row counts by the row's exposure.
        """
        errors = [tier.relative_error for tier in self.kept] + [1.0] * self._drops
        return math.sqrt(sum(w * error**2 for w, error in zip(shares, errors, strict=True)))

    def accepts(self, value: Tensor) -> bool:
        """Values whose rows are the batch's, of fixed size, and that every tier's codec takes."""
        return (
            is_wide_float(value)
            and all(isinstance(size, int) for size in value.shape)
            and self._carries_rows(value.shape)
            and all(tier.accepts(value) for tier in self.kept)
        )

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """The sum of the tiers'."""
        dim = self._dim(shape)
        return sum(
            tier.kept_bytes([*shape[:dim], stop - start, *shape[dim + 1 :]], dtype)
            for tier, (start, stop) in self._slices(shape[dim])
        )

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """The parts of all tiers, one after the other."""
        dim = self._dim(x.shape)
        return tuple(
            part
            for tier, (start, stop) in self._slices(x.shape[dim])
            for part in tier.encode(_slice(tier, x, dim, start, stop))
        )

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``; dropped rows are zeros.

        The tiers are added up, each filled with zeros to all rows: a reader does that in its own kernel, where it would
        have to wait for a concatenation to be written out.
        """
        remaining = iter(parts)
        pieces = [
            tier.decode(tuple(islice(remaining, tier.num_parts)), dtype) for tier in self.kept
        ]
        dim, stops = self._dim(pieces[0].shape), self.names.stops
        each = pieces[0].shape[dim] // stops[0]
        filled = [
            pad(piece, _padding(piece, dim, start * each, (stops[-1] - stop) * each))
            for piece, (start, stop) in zip(pieces, pairwise((0, *stops)), strict=False)
        ]
        return functools.reduce(torch.add, filled)

    @property
    def _drops(self) -> bool:
        return len(self.kept) < len(self.names.codecs)

    def _carries_rows(self, shape: Sequence[int]) -> bool:
        sequences, tokens = self.names.rows.sequences, self.names.rows.tokens
        if tokens == 1:
            leads = len(shape) == 3 and shape[0] == 1 and shape[1] == sequences
            return leads or (len(shape) == 2 and shape[0] == sequences)
        return shape[0] == sequences * tokens or (shape[0] == sequences and tokens in shape[1:-1])

    def _dim(self, shape: Sequence[int]) -> int:
        """The dimension of the rows, of a value or of one of its tiers."""
        return 1 if self.names.rows.tokens == 1 and len(shape) == 3 else 0

    def _slices(self, extent: int) -> Iterator[tuple[Codec, tuple[int, int]]]:
        """Each tier that is kept, with its range along the rows' dimension."""
        each = extent // self.names.rows.sequences
        bounds = pairwise(stop * each for stop in (0, *self.names.stops))
        return zip(self.kept, bounds, strict=False)


def _slice(tier: Codec, x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """The rows of a tier; those that are kept as they are get a storage of their own: a view would keep all of x."""
    if not isinstance(tier, Store):
        return x.narrow(dim, start, stop - start)
    return pad(x, _padding(x, dim, -start, stop - x.shape[dim]))


def _padding(x: Tensor, dim: int, before: int, after: int) -> list[int]:
    """Arguments of ``pad`` for one dimension; rows less than none are cut off."""
    return [0, 0] * (x.dim() - dim - 1) + [before, after]
