"""Sequences sorted by exposure and cut into tiers, each a contiguous range of rows.

A tensor whose leading dimension is in this order is split by slices, never by a gather. Splitting
a unit's rows among codecs can buy ``½·log2(AM/GM)`` bits a value, AM and GM being the arithmetic
and the geometric mean of the squared exposure over rows; tiers keep the most of it that as many
levels can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hilore_planner.grpo.partition import cheapest_parts

TINY = 1e-300
"""Stands in for a live sequence's squared exposure of zero, whose logarithm is not finite."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Rows of neighbouring sequences in the sorted order; dead rows have a tier of their own."""

    start: int
    stop: int
    """Sequences [start, stop) of the order."""
    row_start: int
    row_stop: int
    """The rows they cover."""
    mean_square: float
    """Mean squared exposure over the rows; zero in the dead tier."""
    is_live: bool


@dataclass(frozen=True, slots=True)
class Tiers:
    """A permutation of the sequences and its tiers, most exposed first, dead rows last."""

    order: tuple[int, ...]
    tiers: tuple[Tier, ...]

    @property
    def bits(self) -> float:
        """Bits a value that the live tiers can save against one level for all live rows."""
        live = [t for t in self.tiers if t.is_live]
        rows = sum(t.row_stop - t.row_start for t in live)
        if rows == 0:
            return 0.0
        shares = [(t.row_stop - t.row_start) / rows for t in live]
        squares = [max(t.mean_square, TINY) for t in live]
        mean = sum(share * square for share, square in zip(shares, squares, strict=True))
        logs = sum(share * math.log2(s) for share, s in zip(shares, squares, strict=True))
        return 0.5 * (math.log2(mean) - logs)


def make_tiers(squares: list[float], rows: list[int], live: list[bool], count: int) -> Tiers:
    """At most ``count`` live tiers, and one of dead sequences if there are any.

    ``squares`` are the sums of squared exposure of each sequence over its ``rows``. The cut
    maximises :attr:`Tiers.bits`: it minimises Σ rows·log(mean square) over contiguous parts.
    """
    order = sorted(range(len(rows)), key=lambda i: (not live[i], -squares[i] / max(rows[i], 1), i))
    alive = sum(live)
    total = list(accumulate((squares[i] for i in order), initial=0.0))
    below = list(accumulate((rows[i] for i in order), initial=0))

    def cost(start: int, stop: int) -> float:
        covered = below[stop] - below[start]
        return covered * math.log(max((total[stop] - total[start]) / max(covered, 1), TINY))

    bounds = cheapest_parts(alive, count, cost) if alive else (0,)
    parts = [*pairwise(bounds), *([(alive, len(order))] if alive < len(order) else [])]
    tiers = (
        Tier(
            start=start,
            stop=stop,
            row_start=below[start],
            row_stop=below[stop],
            mean_square=max(total[stop] - total[start], 0.0) / max(below[stop] - below[start], 1),
            is_live=start < alive,
        )
        for start, stop in parts
    )
    return Tiers(tuple(order), tuple(tiers))
