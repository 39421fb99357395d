"""What takes an interior unit's place in memory, however late or early it is needed.

A unit that backward does not read is kept for units that are recomputed from it. Until the last of
those is recomputed the unit is held, and from then on what was recomputed is, or what was
recomputed from that, up to a unit that backward reads. So its bytes, or as many as they take, are
alive until backward gets there, although nothing is known of when the one gives way to the other.

Counting that costs no column. Without it, keeping an interior unit looks free from where some
placement could recompute from it on: with layers chained to layers, all through backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hilore_planner.solvers.problem import NEVER, Bytes, PositionIndex, Unit


@dataclass(frozen=True, slots=True)
class Heirs:
    """Units that are alive where an interior unit that was kept no longer is.

    Attributes:
        size_bytes: what one of them, or a copy of this size of the unit, holds; counted for no
            other unit that has the same heirs.
        until: up to this backward position.
        units: the heirs.
    """

    size_bytes: Bytes = 0
    until: PositionIndex = NEVER
    units: tuple[int, ...] = ()


def heirs_of(
    units: Sequence[Unit],
    parents: Sequence[Sequence[int]],
    rebuilders: Sequence[Sequence[int]],
    latest: Sequence[PositionIndex],
) -> tuple[Heirs, ...]:
    """The heirs of every unit; none for those that backward reads.

    Args:
        units: the problem's, parents first.
        parents: of each unit, by index.
        rebuilders: units that would read it if they were recomputed.
        latest: greatest demand any placement gives it.
    """
    is_interior = [
        not unit.read_at and demand != NEVER for unit, demand in zip(units, latest, strict=True)
    ]
    heirs = [Heirs()] * len(units)
    for u in reversed(range(len(units))):
        if not is_interior[u]:
            continue
        found, sizes, until = set(rebuilders[u]), [], []
        for v in rebuilders[u]:
            size = units[v].rebuilt_bytes
            if is_interior[v]:
                size = min(size, heirs[v].size_bytes)
                found.update(heirs[v].units)
            until.append(heirs[v].until if is_interior[v] else latest[v] - 1)
            # Its interior parents may be kept side by side: each has a share of it.
            sizes.append(size // sum(is_interior[p] for p in parents[v]))
        heirs[u] = Heirs(min(sizes), min(until), tuple(sorted(found)))
    return tuple(heirs)
