"""What a codec is, and what several share.

Encode and decode are plain functions of tensors; the rewriting pass traces them into the graph, where Inductor fuses
encode with whatever else reads the value, and decode into its readers. Inductor fuses kernels that go over the same
elements in the same way, so an encode is made of pointwise work and of sums and maxima over one size of group, and
nothing else: it then shares one kernel, and one reading of the value, with the forward's own work.

Shapes: x (..., F). Groups run along the last dimension: (..., G, g) with G·g = F.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

Rounding = Literal["nearest", "stochastic"]

GROUP = 128
"""Values that have one scale, where features allow it."""
_SMALLEST_PEAK = 1e-35
"""Scales below are subnormal, which devices flush to zero: smaller values come back as zero."""
MAGNITUDE, INFINITE = 0x7FFFFFFF, 0x7F800000
"""Bits of a float32 but its sign, and of infinity: those of NaNs are larger, of finite values smaller.

Magnitudes are compared as whole numbers, which takes a kernel one step where floating point takes two.
"""
_SIGN, _SMALLEST_NORMAL = -(1 << 31), 0x00800000
"""Bits of a float32's sign; from the largest finite magnitude to infinity, and on to zero once they are turned."""
BELOW_BF16 = 0xFFFF
"""Bits of a float32 that bf16 has not."""
_MOST_SIDES = 4
_COMPRESSIBLE = (torch.float32, torch.bfloat16, torch.float16)


class Codec(Protocol):
    """A way to keep a value in fewer bytes. Immutable and hashable: equal codecs are traced once."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """As in the option ``codecs`` and in plan files."""
        ...

    @property
    def relative_error(self) -> float:
        """Root-mean-square error over root-mean-square value of independent Gaussian values."""
        ...

    @property
    def is_lossless(self) -> bool:
        """Whether decode gives back the very value."""
        ...

    @property
    def num_parts(self) -> int:
        """How many tensors are kept of a value."""
        ...

    def accepts(self, value: Tensor) -> bool:
        """Whether a (fake) value's dtype and shape allow the codec."""
        ...

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes of the parts of a value of this shape."""
        ...

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """The ``num_parts`` tensors that are kept of a value."""
        ...

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """The value, from its parts."""
        ...


def is_wide_float(value: Tensor) -> bool:
    """Whether a value is floating point of 16 or 32 bits, with a feature dimension of fixed size."""
    has_features = value.dim() >= 2 and isinstance(value.shape[-1], int) and value.shape[-1] > 0
    return value.dtype in _COMPRESSIBLE and has_features


def largest_divisor(features: int, limit: int) -> int:
    """Largest divisor of ``features`` up to ``limit``."""
    sizes = range(min(limit, features), 0, -1)
    return next(size for size in sizes if features % size == 0)


def in_groups(x: Tensor, size: int) -> Tensor:
    """X (..., F) as (N, *sides): N groups of all rows one after the other, whose sides multiply to ``size``.

    Inductor fuses what goes over the same elements if loops are the same or differ in number. No value has as many
    dimensions as this; and no buffer for a group's figures is padded, so that a group is read once for all of them.
    """
    sides: tuple[int, ...] = ()
    while len(sides) < _MOST_SIDES and size % 2 == 0:
        sides, size = (*sides, 2), size // 2
    return x.reshape(-1, *sides, size)


def turned(groups: Tensor) -> Tensor:
    """Magnitudes of float32 as int32 in their order, but what is not finite before zero."""
    magnitude = groups.view(torch.int32) & MAGNITUDE
    return (magnitude - INFINITE).bitwise_left_shift(1) ^ _SIGN


def finite_peak(turned: Tensor) -> Tensor:
    """The largest finite magnitude of each group, float32 (N, 1, ...); zero where there is none."""
    highest = turned.amax(tuple(range(1, turned.dim())), keepdim=True) ^ _SIGN
    highest = highest.bitwise_right_shift(1) & MAGNITUDE
    return (highest - _SMALLEST_NORMAL).clamp_min(0).view(torch.float32)


def is_all_finite(turned: Tensor) -> Tensor:
    """Whether each group has nothing but finite values, (N, 1, ...)."""
    least = turned.amin(tuple(range(1, turned.dim())), keepdim=True)
    return least >= _SIGN + 2 * _SMALLEST_NORMAL


def by_rows(part: Tensor, x: Tensor) -> Tensor:
    """What is kept of N groups of ``x`` (..., F), (N, ...) with k numbers each, as (..., N / rows, k)."""
    rows = math.prod(x.shape[:-1])
    return part.view(*x.shape[:-1], part.shape[0] // rows, math.prod(part.shape[1:]))


def scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """Scales are bf16 for half-precision values (range matters, not digits), else fp32."""
    return torch.bfloat16 if dtype.itemsize == 2 else torch.float32


def scales_of(kept: Tensor) -> Tensor:
    """Scales as float32, from what is kept of them.

    Of bf16 by its bits: a kernel works on whole numbers once for all values of a group that a thread has, but would
    load and convert bf16 for each.
    """
    if kept.dtype != torch.bfloat16:
        return kept
    return kept.view(torch.int16).to(torch.int32).bitwise_left_shift(16).view(torch.float32)


def scale_of(peak: Tensor, step: Tensor | float, dtype: torch.dtype, room: float = 1.0) -> Tensor:
    """Scale, ``peak`` times ``step`` or just above, float32 and exact in the dtype it is kept in.

    Above by up to 2^-7, where that is bf16: no value is beyond the last code. At the very end of the dtype's range it
    is as much below, so that ``1 / step / room`` scales are a finite value. There are no divisions, which compiled
    kernels round otherwise, and rounding is of bits, as a compiler may leave out a cast to bf16 and back: encode and
    decode use one scale. Limits are of bits, too: that takes a kernel one step where floating point takes three.
    """
    end = torch.finfo(dtype).max * (1 - 2.0**-7) * room
    bits = peak.view(torch.int32).clamp(bits_of(_SMALLEST_PEAK), bits_of(end))
    scale = bits.view(torch.float32) * step
    if scale_dtype(dtype) == torch.float32:
        return scale
    return ((scale.view(torch.int32) + BELOW_BF16) & ~BELOW_BF16).view(torch.float32)


def larger(x: Tensor, y: Tensor) -> Tensor:
    """The larger of positive float32, in one step."""
    return torch.maximum(x.view(torch.int32), y.view(torch.int32)).view(torch.float32)


def bits_of(number: float) -> int:
    """Bits of the float32 nearest below a positive number."""
    fraction, power = math.frexp(number)
    return (power + 125 << 23) + int(fraction * (1 << 24))
