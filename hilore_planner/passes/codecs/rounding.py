"""Noise for stochastic rounding: added before rounding down to a whole step, so that the mean is the value itself.

Where steps are even, decode takes the noise off again (subtractive dither): the error is then uniform within half a
step whatever the value, as small as that of rounding to the nearest, and errors of equal values do not go together.

The noise is no random number of the program's: it is computed from a value's place and its group's scale, both of which
decode knows. The program's own random numbers stay as they are, no seed has to be kept, the same values are rounded
the same way wherever and however often they are, and other values (the next batch, the next step) get other noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NOISE_BITS = 14
"""Of a step: noise is a whole number of 2^14ths of one. int8 has 8 bits more, which a float32 holds besides."""
_MASK, _NOISE = 0xFFFF, (1 << NOISE_BITS) - 1
_GOLDEN = 10125  # 2^14 over the golden ratio, odd: its multiples fill [0, 2^14) evenly
_SCALE, _NEAR, _FAR, _MIX, _LAST = 14851, 12653, 9949, 27697, 14877
"""Odd multipliers, small enough that no product or sum below leaves 31 bits."""
_LONGEST = 1 << 17
_FRACTION_BITS, _MAGIC_BITS = 23, 0x4B400000
"""Bits of a float32 after its first, and all bits of 1.5 · 2^23: the last of them counts one."""


def fixed_point(x: Tensor, bits: int = 0) -> Tensor:
    """Float32 below 2^(22 - bits) in magnitude as whole numbers of 2^-bits, int32, nearest and rather even.

    Infinities stay beyond all of them, on their side. A kernel rounds, and converts to whole numbers, at an eighth of
    the pace at which it adds: here to a number whose last bit counts 2^-bits, whereupon the sum's last bits are it.
    """
    return (x + _magic(bits)).view(torch.int32) - (_MAGIC_BITS - (bits << _FRACTION_BITS))


def floating_point(x: Tensor, bits: int = 0) -> Tensor:
    """Inverse of :func:`fixed_point`."""
    return (x + (_MAGIC_BITS - (bits << _FRACTION_BITS))).view(torch.float32) - _magic(bits)


def _magic(bits: int) -> float:
    return 1.5 * 2.0 ** (_FRACTION_BITS - bits)


def dither(starts: Tensor, sides: Sequence[int]) -> Tensor:
    """Numbers in [0, 2^14) for the values of each group, (..., *sides) int32, from ``starts`` (..., 1 for each side).

    Within a group they are multiples of the golden ratio from the group's start: they fill the interval more evenly
    than independent numbers do, and cost a kernel two steps each.
    """
    size = math.prod(sides)
    place = torch.arange(size, dtype=torch.int32, device=starts.device).view(*sides)
    if size > _LONGEST:  # no overflow: rows longer than that repeat their noise
        place = place & (_LONGEST - 1)
    return (starts + place * _GOLDEN) & _NOISE


def starts_of(scales: Tensor) -> Tensor:
    """A hash of each group's scale and place among all groups: scales (..., G, 1) float32 -> int32 in [0, 2^16).

    It is of few steps, in 32 bits, and never overflows.
    """
    bits = scales.view(torch.int32)
    key = ((bits ^ bits.bitwise_right_shift(16)) & 0x7FFF) * _SCALE
    group = torch.arange(scales.numel(), dtype=torch.int32, device=scales.device)
    near, far = group & 0x7FFF, group.bitwise_right_shift(15) & 0x3FFF
    key = key + (near * _NEAR + far * _FAR).view(scales.shape)
    key = ((key ^ key.bitwise_right_shift(13)) & _MASK) * _MIX
    key = ((key ^ key.bitwise_right_shift(15)) & _MASK) * _LAST
    return key.bitwise_right_shift(7) & _MASK


def written_out(starts: Tensor) -> Tensor:
    """The same, from memory: a kernel that decodes would else make them anew for each value.

    Inductor writes out what is read by strides.
    """
    return starts.as_strided(starts.shape, starts.stride())
