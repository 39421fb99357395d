"""Small whole numbers packed into 32-bit words, and back.

Packing is a sum over the group, one for each word: a reduction like the one that finds the group's scale, so that both
run in one kernel. Unpacking is a shift and a mask for each value, in the reader's kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_WORD = 32


def words_of(size: int, bits: int) -> int:
    """Words that ``size`` numbers of ``bits`` bits (a divisor of 32) take."""
    return -(-size * bits // _WORD)


def pack(digits: Tensor, bits: int) -> Tensor:
    """Digits (N, *sides) int32 in [0, 2^bits) -> words (N, words_of(group, bits)) int32.

    Arithmetic is modulo 2^32: the digit in the uppermost place sets the sign.
    """
    per_word, sides = _WORD // bits, digits.shape[1:]
    size, dims = math.prod(sides), tuple(range(1, digits.dim()))
    place = torch.arange(size, dtype=torch.int32, device=digits.device).view(*sides)
    shifted = digits.bitwise_left_shift(bits * (place % per_word))
    count = words_of(size, bits)
    if count == 1:
        return shifted.sum(dims, dtype=torch.int32).unsqueeze(-1)
    word = place // per_word
    words = [(shifted * (word == k)).sum(dims, dtype=torch.int32) for k in range(count)]
    return torch.stack(words, -1)


def unpack(words: Tensor, size: int, bits: int) -> Tensor:
    """Inverse of ``pack`` for groups of ``size``."""
    per_word = min(_WORD // bits, size)
    shifts = bits * torch.arange(per_word, dtype=torch.int32, device=words.device)
    digits = words.unsqueeze(-1).bitwise_right_shift(shifts) & ((1 << bits) - 1)
    return digits.flatten(-2)
