"""Which units are calibrated together: those that are alike, in neighbouring layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hilore_planner.passes.problem import compressible
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit


@dataclass(frozen=True, slots=True)
class UnitClass:
    """Units of one kind in a range of layers."""

    kind: str
    first_layer: int | None
    last_layer: int | None
    units: tuple[RecoveryUnit, ...]


def kept_classes(graph: RecoveryGraph, buckets: int) -> list[UnitClass]:
    """Classes of the units that may be kept by a codec."""
    return list(_classes((u for u in graph.units.values() if compressible(graph, u)), buckets))


def rebuilt_classes(graph: RecoveryGraph, buckets: int) -> list[UnitClass]:
    """Classes of the units that may be made again from something inexact."""
    units = (
        unit
        for unit in graph.units.values()
        if unit.can_recompute and unit.can_store and sources(graph, unit)
    )
    return list(_classes(units, buckets))


def sources(graph: RecoveryGraph, unit: RecoveryUnit) -> tuple[RecoveryUnit, ...]:
    """Nearest ancestors that may be kept by a codec: what makes a rebuilt unit inexact."""
    found: dict[str, RecoveryUnit] = {}
    stack = list(graph.parents(unit.name))
    while stack:
        parent = graph.units[stack.pop()]
        if compressible(graph, parent):
            found[parent.name] = parent
        elif parent.can_recompute:
            stack.extend(graph.parents(parent.name))
    return tuple(found.values())


def spread_out(names: Sequence[str], most: int) -> list[str]:
    """Up to ``most`` of the names, from the first to the last at about equal distances."""
    count = len(names)
    if count <= most:
        return list(names)
    return [names[round(place * (count - 1) / (most - 1))] for place in range(most)]


def _classes(units: Iterable[RecoveryUnit], buckets: int) -> Iterator[UnitClass]:
    """By kind, then by depth: at most ``buckets`` ranges of about as many layers."""
    kinds: dict[str, list[RecoveryUnit]] = defaultdict(list)
    for unit in units:
        kinds[unit.origin.kind].append(unit)
    for kind, members in kinds.items():
        if members[0].origin.layer is None:
            yield UnitClass(kind, None, None, tuple(members))
            continue
        layers = sorted({unit.origin.layer for unit in members if unit.origin.layer is not None})
        count = min(buckets, len(layers))
        cuts = [len(layers) * part // count for part in range(count + 1)]
        for start, stop in pairwise(cuts):
            first, last = layers[start], layers[stop - 1]
            inside = (u for u in members if first <= (u.origin.layer or 0) <= last)
            yield UnitClass(kind, first, last, tuple(inside))
