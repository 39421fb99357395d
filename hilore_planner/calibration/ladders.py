"""Codecs by how coarse they are: classes are made inexact by the coarsest that acts in proportion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hilore_planner.calibration.profile import family
from hilore_planner.codec_names import DROP, STORE, read_tiers
from hilore_planner.passes.codecs import codec_named


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
