"""What takes an interior unit's place in memory, however late or early it is needed.

A unit that backward does not read is kept for units that are recomputed from it. Until the last of
those is recomputed the unit is held, and from then on what was recomputed is, or what was
recomputed from that, up to a unit that backward reads. So its bytes, or as many as they take, are
alive until backward gets there, although nothing is known of when the one gives way to the other.

Without it, keeping an interior unit looks free from where some placement could recompute from it on:
with layers chained to layers, all through backward. Counting it costs no column where one unit is sure
to be recomputed from it; else one, which says whether any is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hilore_planner.solvers.problem import NEVER, Bytes, PositionIndex, Unit


@dataclass(frozen=True, slots=True)
class Heir:
    """Units that are recomputed from an interior one.

    Attributes:
        units: which.
        size_bytes: if any of them is recomputed, so much of it, of the interior one, or of what is
            recomputed from it is alive; counted for no other unit.
        until: up to this backward position.
        chain: what is recomputed from them, themselves among them.
    """

    units: tuple[int, ...]
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
    costs = _costs(units, parents, is_interior)
    implied = _implied(rebuilders, is_interior)
    heirs: list[tuple[Heir, ...]] = [()] * len(units)
    shared_bytes = [unit.rebuilt_bytes for unit in units]
    for u in reversed(range(len(units))):
        if not is_interior[u]:
            continue
        found = []
        for v in _chosen(rebuilders[u], implied):
            until = min((heir.until for heir in heirs[v]), default=latest[v] - 1)
            chain = frozenset({v}).union(*(heir.chain for heir in heirs[v]))
            # Its interior parents may be kept side by side: each has a share of its bytes. Dear ones
            # have most, being those that are worth keeping.
            share_bytes = int(shared_bytes[v] * costs[v][u] / sum(costs[v].values()))
            found.append(Heir((v,), share_bytes, until, chain))
        heirs[u] = _within(units[u].kept_bytes, found)
        shared_bytes[u] = min(shared_bytes[u], *(heir.size_bytes for heir in heirs[u]))
    return tuple(heirs)


def _within(kept_bytes: Bytes, found: Sequence[Heir]) -> tuple[Heir, ...]:
    """Heirs of no more than the unit's bytes: each with a part of them, or any with all."""
    if len(found) == 1 and found[0].size_bytes <= kept_bytes:
        return tuple(found)
    parts = [replace(h, size_bytes=min(h.size_bytes, kept_bytes // len(found))) for h in found]
    jointly_bytes = min(kept_bytes, *(heir.size_bytes for heir in found))
    if jointly_bytes < sum(heir.size_bytes for heir in parts):
        return tuple(parts)
    readers = tuple(v for heir in found for v in heir.units)
    chain = frozenset[int]().union(*(heir.chain for heir in found))
    return (Heir(readers, jointly_bytes, min(heir.until for heir in found), chain),)


def _chosen(readers: Sequence[int], implied: Sequence[frozenset[int]]) -> Sequence[int]:
    """One that is recomputed whichever reader is, if there is one; else all readers."""
    surely = frozenset.intersection(*(implied[v] for v in readers)).intersection(readers)
    return (min(surely),) if surely else readers


def _implied(
    rebuilders: Sequence[Sequence[int]], is_interior: Sequence[bool]
) -> list[frozenset[int]]:
    """By unit: what is recomputed if it is."""
    implied: list[frozenset[int]] = [frozenset()] * len(rebuilders)
    for u in reversed(range(len(rebuilders))):
        implied[u] = frozenset({u})
        if is_interior[u]:
            implied[u] |= frozenset.intersection(*(implied[v] for v in rebuilders[u]))
    return implied


def _costs(
    units: Sequence[Unit], parents: Sequence[Sequence[int]], is_interior: Sequence[bool]
) -> list[dict[int, float]]:
    """By unit: what each interior parent takes to make from what backward reads.

    What two of them are made from is halved; but all that a parent is made from is its own, where
    another is made from that parent.
    """
    before: list[frozenset[int]] = [frozenset()] * len(units)
    costs: list[dict[int, float]] = []
    for u in range(len(units)):
        near = [p for p in parents[u] if is_interior[p]]
        own = {
            p: before[p].difference(*(before[q] for q in near if q != p and q in before[p]))
            for p in near
        }
        shared = Counter(q for made in own.values() for q in made)
        costs.append({p: 1 + sum(units[q].recompute_ns / shared[q] for q in own[p]) for p in near})
        if is_interior[u]:
            before[u] = frozenset({u}).union(*(before[p] for p in near))
    return costs
