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
from dataclasses import dataclass, replace

from hilore_planner.solvers.problem import NEVER, Bytes, PositionIndex, Unit


@dataclass(frozen=True, slots=True)
class Heir:
    """A unit that is recomputed from an interior one.

    Attributes:
        unit: which.
        size_bytes: if it is recomputed, so much of either, or of what is recomputed from it, is
            alive; counted for no other unit.
        until: up to this backward position.
        chain: what is recomputed from it, itself among them.
    """

    unit: int
    size_bytes: Bytes
    until: PositionIndex
    chain: frozenset[int]


def heirs_of(
    units: Sequence[Unit],
    parents: Sequence[Sequence[int]],
    rebuilders: Sequence[Sequence[int]],
    latest: Sequence[PositionIndex],
) -> tuple[tuple[Heir, ...], ...]:
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
    heirs: list[tuple[Heir, ...]] = [()] * len(units)
    share_bytes = [0] * len(units)
    for u in reversed(range(len(units))):
        size_bytes = units[u].rebuilt_bytes
        if is_interior[u]:
            found = _heirs_of_one(rebuilders[u], latest, heirs, share_bytes)
            most_bytes = units[u].kept_bytes // len(found)
            heirs[u] = tuple(
                replace(heir, size_bytes=min(heir.size_bytes, most_bytes)) for heir in found
            )
            size_bytes = min(size_bytes, *(heir.size_bytes for heir in found))
        # Its interior parents may be kept side by side: each has a share of what it is good for.
        share_bytes[u] = size_bytes // max(sum(is_interior[p] for p in parents[u]), 1)
    return tuple(heirs)


def _heirs_of_one(
    readers: Sequence[int],
    latest: Sequence[PositionIndex],
    heirs: Sequence[tuple[Heir, ...]],
    share_bytes: Sequence[Bytes],
) -> list[Heir]:
    found = []
    for v in readers:
        until = min((heir.until for heir in heirs[v]), default=latest[v] - 1)
        chain = frozenset({v}).union(*(heir.chain for heir in heirs[v]))
        found.append(Heir(v, share_bytes[v], until, chain))
    return found
