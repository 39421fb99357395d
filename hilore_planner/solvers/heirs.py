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
    shared_bytes = [unit.rebuilt_bytes for unit in units]
    for u in reversed(range(len(units))):
        if not is_interior[u]:
            continue
        found = []
        for v in rebuilders[u]:
            until = min((heir.until for heir in heirs[v]), default=latest[v] - 1)
            chain = frozenset({v}).union(*(heir.chain for heir in heirs[v]))
            # Its interior parents may be kept side by side: each has a share of its bytes. Dear ones
            # have most, being those that are worth keeping.
            weights = {p: max(units[p].recompute_ns, 1) for p in parents[v] if is_interior[p]}
            share_bytes = shared_bytes[v] * weights[u] // sum(weights.values())
            size_bytes = min(share_bytes, units[u].kept_bytes // len(rebuilders[u]))
            found.append(Heir(v, size_bytes, until, chain))
        heirs[u] = tuple(found)
        shared_bytes[u] = min(shared_bytes[u], *(heir.size_bytes for heir in found))
    return tuple(heirs)
