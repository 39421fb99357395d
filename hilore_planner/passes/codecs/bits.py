"""Booleans as single bits: nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.passes.codecs.base import by_rows, in_groups
from hilore_planner.passes.codecs.packing import pack, unpack

_SIZES = (32, 16, 8)
_WORDS = {32: torch.int32, 16: torch.int16, 8: torch.uint8}


def _group(features: int) -> int:
    return math.gcd(features, _SIZES[0])


@dataclass(frozen=True, slots=True)
class Bits:
    """One bit a value: 32, 16 or 8 neighbours of a row in one word, whichever divides the features."""

    name: str = "bits"
    relative_error: float = 0.0
    num_parts: int = 1
    is_lossless: bool = True

    def accepts(self, value: Tensor) -> bool:
        """Booleans with a multiple of 8 features."""
        is_mask = value.dtype == torch.bool and value.dim() >= 1
        return is_mask and isinstance(value.shape[-1], int) and _group(value.shape[-1]) in _SIZES

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """An eighth of the values."""
        return math.prod(shape) // 8

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (..., F) -> words (..., G, 1)."""
        size = _group(x.shape[-1])
        words = pack(in_groups(x, size).to(torch.int32), 1)
        return (by_rows(words.to(_WORDS[size]), x),)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode."""
        (words,) = parts
        size = 8 * words.element_size()
        return unpack(words.to(torch.int32), size, 1).to(torch.bool).flatten(-2)
