"""Floating point of fewer bits: eight with a scale for each group of a row, or the sixteen of bf16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.passes import compat
from hilore_planner.passes.codecs.base import (
    GROUP,
    Rounding,
    by_rows,
    finite_peak,
    in_groups,
    is_wide_float,
    largest_divisor,
    scale_dtype,
    scale_of,
    scales_of,
    turned,
)
from hilore_planner.passes.codecs.rounding import NOISE_BITS, dither, starts_of

_LARGEST, _INFINITY = 384.0, 448.0
"""The largest of e4m3 stands for infinity, of which it has none; finite values end before."""
WHOLE_ROW = 1 << 31
"""Of a group's size: more than any row has."""
_TO_E4M3 = compat.to_e4m3()
_BELOW_BITS = 20
"""Bits of float32 below the last of e4m3."""
_FEWEST = 8
"""Features that bf16 is offered from: of fewer, little is spared."""


@dataclass(frozen=True, slots=True)
class Fp8E4M3:
    """fp8 e4m3, with one scale for each group of a row.

    Attributes:
        group: how many values may share a scale: 128, or for a row that has one scale all of them.
    """

    rounding: Rounding = "nearest"
    group: int = GROUP
    name: str = "fp8_e4m3"
    num_parts: int = 2
    is_lossless: bool = False

    @property
    def relative_error(self) -> float:
        """Of Gaussian rows."""
        nearest, stochastic = (0.0259, 0.0366) if self.group == GROUP else (0.0264, 0.0374)
        return nearest if self.rounding == "nearest" else stochastic

    def accepts(self, value: Tensor) -> bool:
        """Floating point of 16 or 32 bits; where features have no large divisor, scales take much."""
        return is_wide_float(value)

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """A byte a value and a scale a group."""
        count = math.prod(shape)
        size, _ = self.grid(shape[-1])
        return count + count // size * scale_dtype(dtype).itemsize

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (..., F) -> codes (..., G, g) float8_e4m3fn, scales (..., G, 1)."""
        size, _ = self.grid(x.shape[-1])
        groups = in_groups(x, size).to(torch.float32)
        scales = scale_of(finite_peak(turned(groups)), 1 / _LARGEST, x.dtype)
        scaled = groups * scales.reciprocal()
        if self.rounding == "stochastic":
            scaled = _up_or_down(scaled, starts_of(scales))
        return by_rows(_TO_E4M3(scaled), x), by_rows(scales.to(scale_dtype(x.dtype)), x)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``."""
        codes, scales = parts
        scaled = codes.to(torch.float32)
        size = scales_of(scales).masked_fill(scaled.abs() >= _INFINITY, math.inf)
        return (scaled * size).to(dtype).flatten(-2)

    def grid(self, features: int) -> tuple[int, int]:
        """How many values of a row share a scale, and what their largest becomes."""
        return largest_divisor(features, self.group), int(_LARGEST)


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


def _up_or_down(scaled: Tensor, starts: Tensor) -> Tensor:
    """Round float32 to a neighbouring value of e4m3 at random, up to 384 and if it is finite.

    Noise below the last bit of e4m3 carries into it or not. Below the smallest normal, 4e-5 of a group's largest, the
    cast has steps left to round, and does it to the nearest.
    """
    noise = dither(starts, scaled.shape[1:]).bitwise_left_shift(_BELOW_BITS - NOISE_BITS)
    noise = torch.where(scaled.abs() < _LARGEST, noise, 0)
    cut = (scaled.view(torch.int32) + noise) & ~((1 << _BELOW_BITS) - 1)
    return cut.view(torch.float32)
