"""Noise for stochastic rounding: added before rounding to the nearest step, so that the mean is the value itself.

Where steps are even, decode takes the noise off again (subtractive dither): the error is then uniform within half a
step whatever the value, as small as that of rounding to the nearest, and errors of equal values do not go together.

The noise is no random number of the program's: it is computed from a value's place and its group's scale, both of which
decode knows. The program's own random numbers stay as they are, no seed has to be kept, the same values are rounded
the same way wherever and however often they are, and other values (the next batch, the next step) get other noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 16
_GOLDEN = 40503  # 2^16 over the golden ratio, odd: its multiples fill [0, 2^16) evenly
_MASK = (1 << _BITS) - 1
_PLACE = (40503, 52501, 60493, 45007, 36683, 57349)
_LOW, _HIGH, _LAST = 11829, 14877, 27697
"""Odd multipliers, small enough that no product or sum below leaves 31 bits."""


def dither(scales: Tensor, size: int) -> Tensor:
    """Numbers in (-½, ½) for ``size`` values of each group, (..., G, size) float32, from scales (..., G, 1) float32.

    Within a group they are multiples of the golden ratio from a hashed start: they fill the interval more evenly than
    independent numbers do, and cost a kernel one addition each.
    """
    place = torch.arange(size, dtype=torch.int32, device=scales.device)
    # At most 2^15 - 1 times the multiplier: no overflow; rows longer than that repeat their noise.
    steps = (place & 0x7FFF) * _GOLDEN
    drawn = (_start(scales) + steps) & _MASK
    return (drawn.to(torch.float32) + 0.5) * (1.0 / (1 << _BITS)) - 0.5


def _start(scales: Tensor) -> Tensor:
    """A hash of each group's scale and place, (..., G, 1) int32 in [0, 2^16).

    A kernel computes it for each value anew, so it is of few steps, in 32 bits, and never overflows. Places that are
    2^15 apart are alike.
    """
    bits = scales.view(torch.int32)
    key = (bits ^ bits.bitwise_right_shift(16)) & _MASK
    for dim in range(scales.dim() - 1):
        place = torch.arange(scales.shape[dim], dtype=torch.int32, device=scales.device)
        shape = [1] * scales.dim()
        shape[dim] = -1
        key = key + (((place & 0x7FFF) * _PLACE[dim % len(_PLACE)]) & 0x0FFFFFFF).view(shape)
    key = (key & _MASK) * _LOW + key.bitwise_right_shift(16) * _HIGH
    key = ((key ^ key.bitwise_right_shift(13)) & _MASK) * _LAST
    return (key ^ key.bitwise_right_shift(15)) & _MASK
