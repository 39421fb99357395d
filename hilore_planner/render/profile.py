"""Predicted and measured time of an update, kind by kind and where they differ most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from hilore_planner.attribution import Difference, by_kind
from hilore_planner.render.table import Column, Line, table
from hilore_planner.sizes import format_ns

_KIND_COLUMNS = (
    Column("kind"),
    Column("predicted", right=True),
    Column("measured", right=True),
    Column("more", right=True),
)
_COLUMNS = (
    Column("more", right=True),
    Column("predicted", right=True),
    Column("times", right=True),
    Column("kind"),
    Column("from"),
    Column("what"),
)
_ROWS = 12
"""Differences shown; the rest are smaller."""


def profile(differences: Sequence[Difference], width: int) -> list[Text]:
    """Two tables under their headings."""
    kinds = list(_kinds(differences))
    rows = list(_rows(differences[:_ROWS]))
    return [
        Text(),
        Text("Time on the device, predicted and measured", style="bold"),
        Text(),
        *table(_KIND_COLUMNS, kinds, width),
        Text(),
        Text("Where they differ most", style="bold"),
        Text(),
        *table(_COLUMNS, rows, width),
    ]


def profile_record(differences: Sequence[Difference]) -> dict[str, Any]:
    """The same as plain data, all differences of it."""
    kinds = {
        kind: {"predicted_time_ns": predicted_ns, "measured_time_ns": measured_ns}
        for kind, (predicted_ns, measured_ns) in by_kind(differences).items()
    }
    return {
        "predicted_time_ns": sum(found.predicted_ns for found in differences),
        "measured_time_ns": sum(found.measured_ns for found in differences),
        "kinds": kinds,
        "differences": [asdict(found) for found in differences],
    }


def _kinds(differences: Sequence[Difference]) -> Iterator[Line]:
    totals = by_kind(differences)
    for kind, (predicted_ns, measured_ns) in sorted(totals.items(), key=lambda each: -each[1][1]):
        yield _times(kind, predicted_ns, measured_ns)
    yield _times("all", *(sum(each[i] for each in totals.values()) for i in range(2)))


def _times(kind: str, predicted_ns: int, measured_ns: int) -> Line:
    more = format_ns(measured_ns - predicted_ns, sign=True)
    return Line((kind, format_ns(predicted_ns), format_ns(measured_ns), more))


def _rows(differences: Sequence[Difference]) -> Iterator[Line]:
    for found in differences:
        what = found.what if found.predicted_ns else f"{found.what}: {', '.join(found.kernels)}"
        yield Line(
            (
                format_ns(found.more_ns, sign=True),
                format_ns(found.predicted_ns),
                str(found.count),
                found.kind,
                found.source,
                what,
            )
        )
