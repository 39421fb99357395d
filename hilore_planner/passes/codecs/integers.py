"""Whole numbers of steps, a scale for each group of a row: int8, int6, int4.

A group with infinities or NaNs has a negative scale, and codes of the other sign. There the lowest code stands for NaN,
the next and the highest for the infinities, and finite values share the codes between. Other groups never see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.passes import compat
from hilore_planner.passes.codecs.base import (
    BELOW_BF16,
    GROUP,
    Rounding,
    by_rows,
    finite_peak,
    in_groups,
    is_all_finite,
    is_wide_float,
    larger,
    largest_divisor,
    scale_dtype,
    scale_of,
    scales_of,
    turned,
)
from hilore_planner.passes.codecs.packing import pack, unpack, words_of
from hilore_planner.passes.codecs.rounding import (
    NOISE_BITS,
    FixedPoint,
    dither,
    starts_of,
    written_out,
)

_TO_BITS = compat.to_bits()
_NOT_FINITE = 0x7F800001
"""Bits of a NaN; one less are those of infinity, and some less of finite values that times two are infinite."""


def quantise(
    groups: Tensor, largest: int, dtype: torch.dtype, rounding: Rounding
) -> tuple[Tensor, Tensor]:
    """Codes in [-largest - 1, largest] as digits from zero, int32, and scales.

    Shapes: groups (N, *sides) float32, of values that had ``dtype``; digits alike; scales (N, 1, ...).
    """
    magnitude = turned(groups)
    peak, is_marked = finite_peak(magnitude), is_all_finite(magnitude).logical_not()
    step = torch.where(is_marked, 1 / (largest - 2), 1 / largest)
    # Without its noise a value may be half a step beyond its code.
    room = largest / (largest + 0.5) if rounding == "stochastic" else 1.0
    scales = scale_of(peak, step, dtype, room)
    size = step_size(scales, peak, step)
    steps = groups * torch.where(is_marked, -size, size).reciprocal()
    point, highest = _point(largest, rounding), 2 * largest + 1
    bits = _TO_BITS(point.raised(steps))
    whole = bits
    if rounding == "stochastic":
        noise = dither(starts_of(scales), groups.shape[1:])
        whole = bits + torch.where(steps.abs() < math.inf, noise, 0)
        whole = whole.bitwise_right_shift(point.bits)
    # The upper two bits are 1, of -inf -1. Others are ones of NaNs and zeros of infinities: with the former that makes
    # three digits around zero, of the finite values of a marked group the others.
    digits = (whole & highest) + bits.bitwise_right_shift(30)
    return digits & highest, torch.where(is_marked, -scales, scales).to(scale_dtype(dtype))


def step_size(scales: Tensor, peak: Tensor, step: Tensor | float) -> Tensor:
    """What values of groups are divided by, so that none is ``1 / step`` or more: its scale, or just above.

    At the very end of the range scales are less.
    """
    return larger(scales, peak * step * (1 + 2.0**-20))


def _point(largest: int, rounding: Rounding) -> FixedPoint:
    return FixedPoint(NOISE_BITS if rounding == "stochastic" else 0, largest)


def dequantise(
    digits: Tensor, scales: Tensor, largest: int, dtype: torch.dtype, rounding: Rounding
) -> Tensor:
    """Inverse of ``quantise``: values of ``dtype``, from digits (..., G, g) int32 and scales (..., G, 1)."""
    kept = scales_of(scales)
    # A digit is one more than its value in fixed point.
    point = FixedPoint(_point(largest, rounding).bits, largest + 1)
    fixed = point.whole(digits)
    if rounding == "stochastic":
        kept, starts = _with_starts(kept, dtype)
        # Half a step, less the noise: its bits flipped are what it lacks of a step, less the last.
        noise = dither(starts, digits.shape[-1:])
        steps = point.back(fixed + (noise ^ ((1 << point.bits) - 1)), 0.5 - 2.0**-point.bits)
    else:
        steps = point.back(fixed)
    outermost = torch.where(kept < 0, largest - 1.5, math.inf)
    other = (_NOT_FINITE - digits).view(torch.float32)
    return (steps * torch.where(steps.abs() > outermost, other, kept)).to(dtype)


def _with_starts(kept: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scales and the starts of their noise, from memory: scales of 16 bits are the upper half of a word with both."""
    starts = starts_of(kept.abs())
    if scale_dtype(dtype) == torch.float32:
        return kept, written_out(starts)
    both = written_out(kept.view(torch.int32) | starts)
    return (both & ~BELOW_BF16).view(torch.float32), both & BELOW_BF16


def _field(digits: Tensor, below: int, bits: int) -> Tensor:
    """``bits`` bits of each digit, of which ``below`` bits are lower."""
    shifted = digits.bitwise_right_shift(below) if below else digits
    return shifted & ((1 << bits) - 1)


@dataclass(frozen=True, slots=True)
class Int8:
    """Bytes, with one scale for each group of up to 128 values of a row."""

    rounding: Rounding = "nearest"
    name: str = "int8"
    num_parts: int = 2
    is_lossless: bool = False

    @property
    def relative_error(self) -> float:
        """Of Gaussian rows, groups of 128."""
        return 0.0065

    def accepts(self, value: Tensor) -> bool:
        """Floating point of 16 or 32 bits; where features have no large divisor, scales take much."""
        return is_wide_float(value)

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """A byte a value and a scale a group."""
        count = math.prod(shape)
        size, _ = self.grid(shape[-1])
        return count + count // size * scale_dtype(dtype).itemsize

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (..., F) -> digits (..., G, g) uint8, scales (..., G, 1)."""
        size, largest = self.grid(x.shape[-1])
        groups = in_groups(x, size).to(torch.float32)
        digits, scales = quantise(groups, largest, x.dtype, self.rounding)
        return by_rows(digits.to(torch.uint8), x), by_rows(scales, x)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``."""
        digits, scales = parts
        values = dequantise(digits.to(torch.int32), scales, 127, dtype, self.rounding)
        return values.flatten(-2)

    def grid(self, features: int) -> tuple[int, int]:
        """How many values of a row share a scale, and the largest whole number of steps."""
        return largest_divisor(features, GROUP), 127


@dataclass(frozen=True, slots=True)
class PackedInt:
    """``bits`` bits a value, packed into words, with one scale for each group of 32 values of a row.

    The lowest four bits of all values come first, then their other two: six bits are four values in three bytes. Of
    features that 32 does not divide, groups have 16 or 8.
    """

    bits: int
    nearest_error: float
    stochastic_error: float
    rounding: Rounding = "nearest"
    is_lossless: bool = False

    @property
    def name(self) -> str:
        """``int`` and the bits."""
        return f"int{self.bits}"

    @property
    def relative_error(self) -> float:
        """Of Gaussian rows, groups of 32."""
        return self.nearest_error if self.rounding == "nearest" else self.stochastic_error

    @property
    def num_parts(self) -> int:
        """The planes and the scales."""
        return len(self._planes) + 1

    @property
    def _planes(self) -> tuple[int, ...]:
        """Bits of each plane, lowest first."""
        return (4,) if self.bits == 4 else (4, self.bits - 4)

    @property
    def _largest(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def accepts(self, value: Tensor) -> bool:
        """Floating point of 16 or 32 bits, with a multiple of 8 features."""
        return is_wide_float(value) and value.shape[-1] % 8 == 0

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Whole words and a scale for each group."""
        size, _ = self.grid(shape[-1])
        words = sum(words_of(size, bits) for bits in self._planes)
        return math.prod(shape) // size * (4 * words + scale_dtype(dtype).itemsize)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (..., F) -> words (..., G, W) int32 of each plane, scales (..., G, 1)."""
        size, largest = self.grid(x.shape[-1])
        groups = in_groups(x, size).to(torch.float32)
        digits, scales = quantise(groups, largest, x.dtype, self.rounding)
        planes, below = [], 0
        for bits in self._planes:
            planes.append(pack(_field(digits, below, bits), bits))
            below += bits
        return tuple(by_rows(part, x) for part in (*planes, scales))

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``."""
        *planes, scales = parts
        size = min(32, 8 * planes[0].shape[-1])
        digits, below = unpack(planes[0], size, 4), 4
        for plane, bits in zip(planes[1:], self._planes[1:], strict=True):
            digits = digits | unpack(plane, size, bits).bitwise_left_shift(below)
            below += bits
        return dequantise(digits, scales, self._largest, dtype, self.rounding).flatten(-2)

    def grid(self, features: int) -> tuple[int, int]:
        """How many values of a row share a scale, and the largest whole number of steps."""
        return math.gcd(features, 32), self._largest
