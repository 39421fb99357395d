"""``hilore bench peak``: is the cap real? Predicted against measured peaks over a ladder of caps.

For each setting the update is first compiled with all the memory it likes. Its plan tells the smallest feasible cap and
the peak of storing everything; the ladder lies between. Every rung is compiled and measured, exact and compressed.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hilore_planner.bench.runner import Job, Row, run_jobs
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import solve

COMPRESSED_ERROR = 0.05
"""Error budget of the compressed rungs: large enough that compression is used at all."""


def bench_peak(
    settings: Sequence[Setting], *, rungs: int, device: str, side_by_side: int
) -> list[Row]:
    """Rows of every setting: stored whole, then ``rungs`` caps exact and as many compressed."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{setting.name}.json" for setting in settings]
        whole = [
            Job(setting, Variant("hilore uncapped", "hilore"), file)
            for setting, file in zip(settings, files, strict=True)
        ]
        rows = run_jobs(whole, device=device, side_by_side=side_by_side)
        jobs = [
            job
            for setting, file in zip(settings, files, strict=True)
            if file.exists()
            for job in _ladder(setting, PlacementPlan.load(file), rungs)
        ]
        return rows + run_jobs(jobs, device=device, side_by_side=side_by_side)


def _ladder(setting: Setting, plan: PlacementPlan, rungs: int) -> list[Job]:
    jobs = []
    for label, error in (("exact", 0.0), ("compressed", COMPRESSED_ERROR)):
        for cap in ladder_caps(plan, error, rungs):
            variant = Variant(f"hilore {label}", "hilore", cap_bytes=cap, gradient_error=error)
            jobs.append(Job(setting, variant))
    return jobs


def ladder_caps(plan: PlacementPlan, gradient_error: float, rungs: int) -> list[int]:
    """Caps from the smallest feasible to the peak of storing everything, evenly spaced, ascending."""
    problem = replace(plan.problem, memory_cap_bytes=1, gradient_error=gradient_error)
    smallest = solve(problem).smallest_feasible_cap_bytes
    assert smallest is not None
    step = (plan.predicted_peak_bytes - smallest) / (rungs - 1)
    return [round(smallest + rung * step) for rung in range(rungs)]


def summary(rows: Sequence[Row]) -> list[str]:
    """What the rows say: worst ratios, caps held, order of peaks and times."""
    lines = []
    for name in dict.fromkeys((row["setting"], row["variant"]) for row in rows):
        cells = [row for row in rows if (row["setting"], row["variant"]) == name]
        done = [row for row in cells if "error" not in row]
        ratios = [row["predicted_peak_bytes"] / row["measured_peak_bytes"] for row in done]
        over = sum(
            row["measured_peak_bytes"] > row["cap_bytes"] for row in done if row["cap_bytes"]
        )
        peaks = [row["measured_peak_bytes"] for row in done]
        times = [row["time_ms"] for row in done]
        lines.append(
            f"{name[0]}, {name[1]}: {len(done)} of {len(cells)} cells; predicted/measured "
            f"{min(ratios, default=0):.4f} to {max(ratios, default=0):.4f}; over the cap {over}; peaks fall "
            f"{_falls(peaks)} times, times rise {_falls(times[::-1])} times as the cap grows"
        )
    return lines


def _falls(values: Sequence[float]) -> int:
    return sum(after < before for before, after in itertools.pairwise(values))
