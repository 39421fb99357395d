"""What classes are made inexact by: codecs by how coarse they are, and parts of a batch that tiers treat alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from hilore_planner.calibration.profile import family
from hilore_planner.codec_names import DROP, STORE, Rows, TierNames, read_tiers
from hilore_planner.passes.codecs import codec_named


@dataclass(frozen=True, slots=True)
class Range:
    """Sequences ``start`` to ``stop`` of a batch in order of exposure, which each tier has whole or not at all."""

    start: int
    stop: int
    rows: Rows

    def kept_by(self, codec: str) -> str:
        """The tiered codec that keeps them by ``codec``, and all others as they are."""
        parts = ((STORE, self.start), (codec, self.stop), (STORE, self.rows.sequences))
        starts = (0, self.start, self.stop)
        wanted = [part for part, start in zip(parts, starts, strict=True) if part[1] > start]
        codecs, stops = zip(*wanted, strict=True)
        return str(TierNames(codecs, stops, self.rows))

    def has(self, place: float) -> bool:
        """Whether it has what stands at ``place`` of the order, from 0 to 1."""
        return self.start <= place * self.rows.sequences < self.stop


def ranges(names: Iterable[str]) -> tuple[Range, ...]:
    """What the tiered ones of the named codecs treat alike: from one end of a tier to the next."""
    stops: dict[Rows, set[int]] = defaultdict(lambda: {0})
    for name in names:
        tiers = read_tiers(name)
        if tiers is not None:
            stops[tiers.rows].update(tiers.stops)
    return tuple(
        Range(start, stop, rows)
        for rows, ends in stops.items()
        for start, stop in pairwise(sorted(ends))
    )


def plain_codecs(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the named codecs that lose something, and what tiers are made of."""
    plain: list[str] = []
    for name in names:
        tiers = read_tiers(name)
        plain += [name] if tiers is None else [c for c in tiers.codecs if c not in (STORE, DROP)]
    return tuple(c for c in dict.fromkeys(plain) if not codec_named(c).is_lossless)


def coarsest_first(plain: Iterable[str]) -> list[str]:
    """Plain codecs by their error, the largest first."""
    return sorted(plain, key=lambda name: -codec_named(name).relative_error)


def families(plain: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Plain codecs whose errors fall on the same values, the coarsest first."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in coarsest_first(plain):
        found[family(name)].append(name)
    return tuple(map(tuple, found.values()))


def probe(plain: Iterable[str]) -> str:
    """The codec that ranges are kept by: the finest whose steps are even, or the finest there is.

    Where rounding to the nearest makes many zeros, as of four bits, errors are no longer those of tiers, which round
    stochastically.
    """
    finest = coarsest_first(plain)[::-1]
    return next((name for name in finest if family(name) == "int"), finest[0])


def ladders(plain: Iterable[str], tiers: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """What classes are kept by alone, the coarsest of a family first; with tiers, their ranges by the :func:`probe`.

    That codec is measured on all of the batch, too.
    """
    plain, parts = tuple(plain), ranges(tiers)
    if not parts:
        return families(plain)
    fine = probe(plain)
    others = families(name for name in plain if name != fine)
    return (*others, (fine,), *((part.kept_by(fine),) for part in parts))
