"""``hilore bench cost``: are times predicted rightly? Predicted against measured updates over a ladder of caps.

For each setting the update is first compiled with all the memory it likes, alone, so that costs are measured on a quiet
device. Then it is compiled by plain Inductor, for comparison, and for every rung of the ladder, exact and compressed.
When all are compiled, each is timed, and a plan's time beyond the predicted is attributed to kernels. Predicted is the
device's time, so that measured is that of updates queued one after another.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hilore_planner.bench.peak import COMPRESSED_ERROR, estimated_caps
from hilore_planner.bench.runner import Job, Row, run_led
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.plan import PlacementPlan

_APART = 0.01
"""Updates whose times differ by less are not expected to be told apart."""
_SHOWN = 5


def bench_cost(
    settings: Sequence[Setting], *, rungs: int, costs: str, device: str, side_by_side: int
) -> Iterator[Row]:
    """Rows of every setting, as they are measured: stored whole, then ``rungs`` caps exact and as many compressed."""
    for setting in settings:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "whole.json"
            whole = Job(setting, _variant("hilore uncapped", None, COMPRESSED_ERROR, costs), file)
            then = partial(_others, setting, file, rungs, costs)
            for row in run_led(whole, then, device=device, side_by_side=side_by_side):
                yield row | _ratio(row)


def _others(setting: Setting, whole: Path, rungs: int, costs: str) -> list[Job]:
    """Plain Inductor, and the ladder under a plan that has all the memory it likes, if there is one."""
    jobs = [Job(setting, Variant("inductor", "inductor"))]
    if whole.exists():
        jobs += _ladder(setting, PlacementPlan.load(whole), rungs, costs, whole.parent)
    return jobs


def _ladder(
    setting: Setting, plan: PlacementPlan, rungs: int, costs: str, folder: Path
) -> list[Job]:
    jobs = []
    for label, error in (("exact", 0.0), ("compressed", COMPRESSED_ERROR)):
        for cap in estimated_caps(plan, error, rungs):
            file = folder / f"{label}-{cap}.json"
            jobs.append(Job(setting, _variant(f"hilore {label}", cap, error, costs), file))
    return jobs


def _variant(name: str, cap_bytes: int | None, error: float, costs: str) -> Variant:
    return Variant(
        name, "hilore", cap_bytes=cap_bytes, gradient_error=error, costs=costs, attribute=True
    )


def _ratio(row: Row) -> Row:
    if "predicted_time_ns" not in row:
        return {}
    return {"time_ratio": round(row["predicted_time_ns"] / (1e6 * row["queued_time_ms"]), 4)}


def ordered_share(rows: Sequence[Row]) -> tuple[int, int]:
    """Pairs of updates whose order by predicted time is that by measured time, and pairs that are apart at all."""
    right = pairs = 0
    for one, other in itertools.combinations(rows, 2):
        times = one["queued_time_ms"], other["queued_time_ms"]
        if max(times) <= (1 + _APART) * min(times):
            continue
        pairs += 1
        is_faster = one["predicted_time_ns"] < other["predicted_time_ns"]
        right += is_faster == (times[0] < times[1])
    return right, pairs


def planning_share(row: Row) -> float:
    """Time of planning and checking, relative to all else that compiling a plan took."""
    planning_seconds, compile_seconds = (
        float(row[name]) for name in ("planning_seconds", "compile_seconds")
    )
    return planning_seconds / (compile_seconds - planning_seconds)


def summary(rows: Sequence[Row]) -> list[str]:
    """What the rows say: ratios, order, planning, and where most time is beyond the predicted."""
    lines = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        of_setting = [row for row in rows if row["setting"] == name]
        plain = [row for row in of_setting if row["variant"] == "inductor"]
        plans = [row for row in of_setting if row["variant"] != "inductor"]
        done = [row for row in plans if "error" not in row]
        if not done:
            lines.append(f"{name}: none of {len(plans)} plans could be timed")
            continue
        ratios = [row["time_ratio"] for row in done]
        right, pairs = ordered_share(done)
        shares = [planning_share(row) for row in done if row["compile_seconds"]]
        lines.append(
            f"{name}: {len(done)} of {len(plans)} plans; predicted/measured time {min(ratios):.3f} to "
            f"{max(ratios):.3f}; {right} of {pairs} pairs more than {_APART:.0%} apart in the right order; planning "
            f"{min(shares, default=0):.1%} to {max(shares, default=0):.1%} of compiling"
        )
        lines += [
            f"  first call {row['first_call_seconds']:.0f} s without a plan, "
            f"{done[0]['first_call_seconds']:.0f} s with the first, costs measured where they were not known"
            for row in plain
            if "error" not in row
        ]
        lines += _where(max(done, key=lambda row: abs(row["time_ratio"] - 1)))
    return lines


def _where(row: Row) -> list[str]:
    """The largest differences of one row."""
    lines = [
        f"  {row['variant']}, {row['queued_time_ms']:.1f} ms; where measured and predicted differ most:"
    ]
    for difference in row["differences"][:_SHOWN]:
        lines.append(
            f"  {_more(difference)} {difference['kind']} x{difference['count']}: {difference['what'][:100]}"
        )
    return lines


def _more(difference: dict[str, Any]) -> str:
    more_ns = difference["measured_ns"] - difference["predicted_ns"]
    return f"{more_ns / 1e6:+8.2f} ms of {difference['predicted_ns'] / 1e6:7.2f}"
