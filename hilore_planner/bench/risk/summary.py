"""What the rows of the risk benchmark show."""

from __future__ import annotations

from collections.abc import Sequence

from hilore_planner.bench.risk.run import BUDGET, LEVELS
from hilore_planner.bench.runner import Row


def summary(rows: Sequence[Row]) -> list[str]:
    """One line for each plan, then what is held of many microbatches and what tiers pay."""
    lines = [f"{row['variant']}: {row['error']}" for row in rows if "error" in row]
    done = {row["variant"]: row for row in rows if "error" not in row}
    lines += [line for row in done.values() for line in _ratio(row)]
    for variant in ("held out", "policy update"):
        if variant in done:
            errors = done[variant]["measured_gradient_errors"]
            within = sum(error <= BUDGET for error in errors)
            lines.append(f"{variant}: {within} of {len(errors)} microbatches within {BUDGET}")
    for more, less in _COMPARED:
        if more in done and less in done:
            times = done[more]["measured_gradient_error"] / done[less]["measured_gradient_error"]
            lines.append(f"{more}: {times:.2f} times the error of {less}")
    return lines


_COMPARED = (
    *((f"{level}, blind", f"{level}, by exposure") for level in LEVELS),
    ("the paper's rule, op by op", "bytes of the paper's rule, by exposure"),
)


def _ratio(row: Row) -> list[str]:
    predicted, measured = (
        row.get("predicted_gradient_error"),
        row.get("measured_gradient_error"),
    )
    if not predicted or not measured:
        return []
    ratio = f"{predicted:.5f} / {measured:.5f} = {predicted / measured:.2f}"
    return [f"{row['variant']}: predicted / measured {ratio}"]
