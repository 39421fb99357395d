"""Folds the same unit of many layers into one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, TypeVar

Row = TypeVar("Row")


@dataclass(slots=True)
class Folded(Generic[Row]):
    """One row and the layers it stands for."""

    row: Row
    count: int = 0
    """How many units it stands for."""
    layers: set[int] = field(default_factory=set)
    """Empty for a row outside any layer."""


@dataclass(frozen=True, slots=True)
class Section(Generic[Row]):
    """The rows that hold in the same layers, in the order they were met."""

    heading: str
    rows: tuple[Folded[Row], ...]


def fold(rows: Iterable[tuple[Row, int | None]]) -> tuple[Section[Row], ...]:
    """Folds rows that are equal but for their layer, and gathers what holds in the same layers.

    Args:
        rows: hashable rows, each with its layer, or None outside any layer.

    Returns:
        Sections and their rows, each in the order first met.
    """
    folded: dict[tuple[Row, bool], Folded[Row]] = {}
    for row, layer in rows:
        entry = folded.setdefault((row, layer is None), Folded(row))
        entry.count += 1
        if layer is not None:
            entry.layers.add(layer)
    sections: dict[frozenset[int], list[Folded[Row]]] = {}
    for entry in folded.values():
        sections.setdefault(frozenset(entry.layers), []).append(entry)
    return tuple(Section(_heading(layers), tuple(rows)) for layers, rows in sections.items())


def _heading(layers: frozenset[int]) -> str:
    if not layers:
        return "outside layers"
    if len(layers) == 1:
        return f"layer {layer_ranges(layers)}"
    return f"layers {layer_ranges(layers)} (x{len(layers)})"


def layer_ranges(layers: Iterable[int]) -> str:
    """Layers as ranges: ``0-12, 15, 17-27``."""
    runs = groupby(enumerate(sorted(layers)), key=lambda pair: pair[1] - pair[0])
    texts = []
    for _, run in runs:
        members = [layer for _, layer in run]
        texts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(texts)
