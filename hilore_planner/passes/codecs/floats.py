"""Floating point of fewer bits: eight with a scale for each row, or the sixteen of bf16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.passes.codecs.base import Rounding, is_wide_float, scale_dtype, scale_of
from hilore_planner.passes.codecs.rounding import dither

_INFINITY = 448.0
"""The largest of e4m3 stands for infinity, of which it has none; finite values end before."""
_LARGEST = 384.0
_SMALLEST_NORMAL = 2.0**-6
_FRACTION = 2.0**3
_EXPONENT = 0x7F800000
_FEWEST = 8
"""Features that bf16 is offered from: of fewer, little is spared."""


@dataclass(frozen=True, slots=True)
class Fp8E4M3:
    """fp8 e4m3 with one scale per row."""

    rounding: Rounding = "nearest"
    name: str = "fp8_e4m3"
    num_parts: int = 2
    is_lossless: bool = False

    @property
    def relative_error(self) -> float:
        """Of Gaussian rows, one scale a row."""
        return 0.0266 if self.rounding == "nearest" else 0.0376

    def accepts(self, value: Tensor) -> bool:
        """Floating point of 16 or 32 bits."""
        return is_wide_float(value)

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """A byte a value and a scale a row."""
        return math.prod(shape) + math.prod(shape[:-1]) * scale_dtype(dtype).itemsize

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (..., F) -> codes (..., F) float8_e4m3fn, scales (..., 1)."""
        values = x.to(torch.float32)
        magnitude = values.abs()
        is_outside = (magnitude < math.inf).logical_not()
        peak = magnitude.masked_fill(is_outside, 0.0).amax(-1, keepdim=True)
        scales = scale_of(peak, 1 / _LARGEST, x.dtype)
        scaled = values * scales.reciprocal()
        if self.rounding == "stochastic":
            scaled = _up_or_down(scaled, scales)
        limit = (magnitude == math.inf) * (_INFINITY - _LARGEST) + _LARGEST
        return scaled.clamp(-limit, limit).to(torch.float8_e4m3fn), scales.to(scale_dtype(x.dtype))

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``."""
        codes, scales = parts
        scaled = codes.to(torch.float32)
        values = scaled * scales.to(torch.float32)
        return torch.where(scaled.abs() >= _INFINITY, scaled * math.inf, values).to(dtype)


@dataclass(frozen=True, slots=True)
class Bf16:
    """The upper half of a float32, to the nearest: its range, and eight bits of its fraction.

    To the nearest even where other codecs round stochastically: of the sixteen bits that are dropped, values that are
    equal in the others have any, and their errors do not go together.
    """

    name: str = "bf16"
    relative_error: float = 0.00166
    num_parts: int = 1
    is_lossless: bool = False

    def accepts(self, value: Tensor) -> bool:
        """Floating point of 32 bits; not what has a few numbers a row, such as a norm's statistics."""
        is_wide = is_wide_float(value) and value.dtype == torch.float32
        return is_wide and value.shape[-1] >= _FEWEST

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Two bytes a value."""
        return 2 * math.prod(shape)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (...) -> bfloat16 (...); finite values beyond its end are its largest."""
        end = torch.finfo(torch.bfloat16).max
        finite = x.clamp(-end, end)
        return (torch.where(x.abs() == math.inf, x, finite).to(torch.bfloat16),)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``."""
        return parts[0].to(dtype)


def _up_or_down(scaled: Tensor, scales: Tensor) -> Tensor:
    """Round to a neighbouring value of e4m3 at random; infinities and NaNs stay."""
    binade = (scaled.view(torch.int32) & _EXPONENT).view(torch.float32)
    step = binade.clamp(_SMALLEST_NORMAL, 256.0) * (1 / _FRACTION)
    return (scaled / step + dither(scales, scaled.shape[-1])).round() * step
