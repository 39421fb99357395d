"""Write the tables of ``docs/results/*.json`` into README.md, between its two markers.

    python scripts/readme_tables.py

A test checks that README.md is in step with the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hilore_planner.sizes import format_bytes

ROOT = Path(__file__).parent.parent
START, END = "<!-- results: written by scripts/readme_tables.py -->", "<!-- end of results -->"

TITLES = {
    "speed": "Time and memory of one update",
    "peak": "Predicted and measured peaks under many caps",
    "head": "The head alone",
    "cost": "Predicted and measured times under many caps",
    "dead_rows": "Leaving out sequences without a gradient",
    "sweep": "One update under many caps",
}
"""Of result files by name; another file's title is its name."""

_COLUMNS = (
    "setting",
    "variant",
    "cap",
    "time",
    "peak",
    "predicted",
    "predicted / measured",
    "tokens/s",
    "time, predicted / measured",
)
_MOST_CAPS = 6
"""A variant measured under more caps than these becomes one line of ranges."""

Row = dict[str, Any]


def with_tables(readme: str, folder: Path) -> str:
    """README's text with the tables of a folder's files; without files there is nothing between the markers."""
    before, _, rest = readme.partition(START)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md must hold {START!r} and then {END!r}")
    records = {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }
    sections = [_section(name, found) for name, found in records.items() if _is_of_updates(found)]
    heading = ["## Measured\n"] if sections else []
    return "\n".join([before + START, *heading, *sections, END + after])


def _is_of_updates(record: Row) -> bool:
    """Whether a record is of times and memory; others have their tables elsewhere."""
    wanted = {"measured_peak_bytes", "time_ms"}
    return all("error" in row or wanted <= row.keys() for row in record["rows"])


def _section(name: str, record: Row) -> str:
    commits = dict.fromkeys(row.get("commit", record["commit"]) for row in record["rows"])
    made = (
        f"{record['device']}, torch {record['torch']}, commit{'s' if len(commits) > 1 else ''} "
        f"{', '.join(commits)}, {record['date'][:10]}"
    )
    lines = [f"### {TITLES.get(name, name)}", "", f"`{record['command']}`, {made}", ""]
    return "\n".join([*lines, *_table(record["rows"]), ""])


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---|---" + "|--:" * (len(_COLUMNS) - 2) + "|"
    for (setting, variant), group in groupby(rows, lambda row: (row["setting"], row["variant"])):
        same = list(group)
        for cells in [same] if len(same) > _MOST_CAPS else [[row] for row in same]:
            yield f"| {setting} | {variant} | {' | '.join(_cells(cells))} |"


def _cells(rows: Sequence[Row]) -> Iterator[str]:
    """Figures of one row, or the ranges of several."""
    done = [row for row in rows if "error" not in row]
    caps = [row["cap_bytes"] for row in rows if row.get("cap_bytes")]
    yield _range(caps, format_bytes) + (f" ({len(rows)})" if len(rows) > 1 else "")
    taken = _range([row["time_ms"] for row in done], lambda time_ms: f"{time_ms:.1f} ms")
    yield ", ".join([taken] * bool(done) + _failures(rows))
    measured = [row["measured_peak_bytes"] for row in done]
    predicted = [row for row in done if row.get("predicted_peak_bytes")]
    yield _range(measured, format_bytes)
    yield _range([row["predicted_peak_bytes"] for row in predicted], format_bytes)
    ratios = [row["predicted_peak_bytes"] / row["measured_peak_bytes"] for row in predicted]
    yield _range(ratios, lambda ratio: f"{ratio:.4f}")
    yield _range([row["tokens_per_second"] for row in done], lambda count: f"{count:,.0f}")
    times = [row["time_ratio"] for row in done if "time_ratio" in row]
    yield _range(times, lambda ratio: f"{ratio:.3f}")


def _failures(rows: Sequence[Row]) -> list[str]:
    """What became of rows without figures: refused, as the compiled update did not fit the cap, or failed."""
    errors = [row["error"] for row in rows if "error" in row]
    refused = sum(error.startswith("InfeasibleError") for error in errors)
    counts = ((refused, "refused"), (len(errors) - refused, "failed"))
    return [word if len(rows) == 1 else f"{count} {word}" for count, word in counts if count]


def _range(values: Sequence[float], show: Any) -> str:
    if not values:
        return "-"
    least, most = show(min(values)), show(max(values))
    return str(least) if least == most else f"{least} to {most}"


def main() -> None:
    """Rewrite README.md in place."""
    readme = ROOT / "README.md"
    text = with_tables(readme.read_text(encoding="utf-8"), ROOT / "docs" / "results")
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
