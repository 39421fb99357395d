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
_HASH = 0x2C1B3C6D
_PLACE = (73856093, 19349663, 83492791, 49979687, 67867967, 32452843)


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
    """A hash of each group's scale and place, (..., G, 1) int32 in [0, 2^16)."""
    key = scales.view(torch.int32).to(torch.int64)
    for dim in range(scales.dim() - 1):
        place = torch.arange(scales.shape[dim], dtype=torch.int64, device=scales.device)
        shape = [1] * scales.dim()
        shape[dim] = -1
        key = key + place.view(shape) * _PLACE[dim % len(_PLACE)]
    # 31 bits times 30: no overflow. The middle bits depend on all of the key.
    return (((key & 0x7FFFFFFF) * _HASH).bitwise_right_shift(24) & _MASK).to(torch.int32)
