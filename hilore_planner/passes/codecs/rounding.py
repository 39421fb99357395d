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
_MASK = (1 << _BITS) - 1
_GOLDEN = 40503  # 2^16 over the golden ratio, odd: its multiples fill [0, 2^16) evenly
_SCALE, _NEAR, _FAR, _MIX, _LAST = 14851, 12653, 9949, 27697, 14877
"""Odd multipliers, small enough that no product or sum below leaves 31 bits."""


def dither(scales: Tensor, size: int) -> Tensor:
    """Numbers in (-½, ½) for ``size`` values of each group, (..., G, size) float32, from scales (..., G, 1) float32.

    Within a group they are multiples of the golden ratio from the group's start: they fill the interval more evenly
    than independent numbers do, and cost a kernel one addition each.
    """
    place = torch.arange(size, dtype=torch.int32, device=scales.device)
    # At most 2^15 - 1 times the multiplier: no overflow; rows longer than that repeat their noise.
    steps = (place & 0x7FFF) * _GOLDEN
    drawn = (_start(scales) + steps) & _MASK
    return drawn.to(torch.float32) * (1.0 / (1 << _BITS)) + (0.5 / (1 << _BITS) - 0.5)


def _start(scales: Tensor) -> Tensor:
    """A hash of each group's scale and place among all groups, (..., G, 1) int32 in [0, 2^23).

    A kernel computes it for each value anew, and is bound by it: it is of few steps, in 32 bits, and never overflows.
    """
    bits = scales.view(torch.int32)
    key = ((bits ^ bits.bitwise_right_shift(16)) & 0x7FFF) * _SCALE
    group = torch.arange(scales.numel(), dtype=torch.int32, device=scales.device)
    near, far = group & 0x7FFF, group.bitwise_right_shift(15) & 0x3FFF
    key = key + (near * _NEAR + far * _FAR).view(scales.shape)
    key = ((key ^ key.bitwise_right_shift(13)) & _MASK) * _MIX
    key = ((key ^ key.bitwise_right_shift(15)) & _MASK) * _LAST
    return key.bitwise_right_shift(7)
