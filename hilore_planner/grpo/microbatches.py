"""Sequences of many lengths in microbatches of few shapes, so that compiled plans are used again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from hilore_planner.errors import OptionError
from hilore_planner.grpo.base import at_least
from hilore_planner.grpo.partition import cheapest_parts


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Some sequences and the shape they are brought to."""

    sequences: tuple[int, ...]
    """Positions in the list of lengths, longest first."""
    height: int
    """Rows of a padded microbatch, of which the last may be padding; one if packed."""
    width: int
    """Tokens of a padded row, or of the whole packed microbatch."""


def pad_microbatches(
    lengths: list[int], *, max_tokens: int, shapes: int = 4, multiple: int = 1
) -> tuple[Microbatch, ...]:
    """Padded microbatches of at most ``shapes`` shapes, longest first, with least padding.

    Sequences sorted by length are cut into ``shapes`` runs; a run is as wide as its longest
    sequence, rounded up to ``multiple``, and is dealt into microbatches of equal height that hold
    at most ``max_tokens`` tokens. The cut with the fewest tokens, padding included, is taken.

    Raises: OptionError for a sequence that is longer than ``max_tokens``.
    """
    _check(lengths, max_tokens, multiple)
    at_least("shapes", shapes, 1)
    if not lengths:
        return ()
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))

    def shape(start: int, stop: int) -> tuple[int, int, int]:
        width = _rounded(lengths[order[start]], multiple)
        tallest = max(max_tokens // max(width, 1), 1)
        number = -(-(stop - start) // tallest)
        return number, -(-(stop - start) // number), width

    bounds = cheapest_parts(len(order), shapes, lambda a, b: math.prod(shape(a, b)))
    return tuple(
        Microbatch(tuple(order[first : min(first + height, stop)]), height, width)
        for start, stop in pairwise(bounds)
        for _, height, width in [shape(start, stop)]
        for first in range(start, stop, height)
    )


def pack_microbatches(
    lengths: list[int], *, max_tokens: int, multiple: int = 1
) -> tuple[Microbatch, ...]:
    """Packed microbatches of one shape, balanced in tokens.

    Longest first, each sequence goes to the microbatch with the fewest tokens (LPT); one more
    microbatch is taken until none holds more than ``max_tokens``. All are padded to the fullest,
    rounded up to ``multiple``.

    Raises: OptionError for a sequence that is longer than ``max_tokens``.
    """
    _check(lengths, max_tokens, multiple)
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    capacity = max_tokens // multiple * multiple
    for number in range(max(1, -(-sum(lengths) // capacity)), len(lengths) + 1):
        bins: list[list[int]] = [[] for _ in range(number)]
        filled = [0] * number
        for i in order:
            emptiest = filled.index(min(filled))
            bins[emptiest].append(i)
            filled[emptiest] += lengths[i]
        if max(filled) <= capacity:
            width = _rounded(max(filled), multiple)
            return tuple(Microbatch(tuple(members), 1, width) for members in bins)
    return ()


def _rounded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _check(lengths: list[int], max_tokens: int, multiple: int) -> None:
    at_least("multiple", multiple, 1)
    longest = max(lengths, default=0)
    if _rounded(longest, multiple) > max_tokens:
        raise OptionError(
            f"max_tokens is {max_tokens}; the longest sequence has {longest} tokens, in multiples "
            f"of {multiple}: accepted: >= {_rounded(longest, multiple)}"
        )
