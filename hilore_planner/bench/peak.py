"""``hilore bench peak``: is the cap real? Predicted against measured peaks over a ladder of caps.

For each setting the update is first compiled with all the memory it likes, and with none at all: the error then names
the smallest cap that is kept. The ladder lies between the two. Every rung is compiled and measured, exact and
compressed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hilore_planner.bench.runner import Job, Row, run_jobs
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import solve

COMPRESSED_ERROR = 0.05
"""Error budget of the compressed rungs: large enough that compression is used at all."""

_ERRORS = {"exact": 0.0, "compressed": COMPRESSED_ERROR}
_UNCAPPED = "hilore uncapped"


def bench_peak(
    settings: Sequence[Setting], *, rungs: int, device: str, side_by_side: int
) -> list[Row]:
    """Rows of every setting: stored whole, then ``rungs`` caps exact and as many compressed."""
    ends = [Job(setting, variant) for setting in settings for variant in _ends()]
    rows = run_jobs(ends, device=device, side_by_side=side_by_side)
    jobs = [job for setting in settings for job in _ladder(setting, rows, rungs)]
    kept = [row for row in rows if not row.get("refused")]
    return kept + run_jobs(jobs, device=device, side_by_side=side_by_side)


def _ends() -> list[Variant]:
    refused = (_capped(label, 1) for label in _ERRORS)
    return [Variant(_UNCAPPED, "hilore"), *refused]


def _capped(label: str, cap_bytes: int) -> Variant:
    return Variant(f"hilore {label}", "hilore", cap_bytes=cap_bytes, gradient_error=_ERRORS[label])


def _ladder(setting: Setting, rows: Sequence[Row], rungs: int) -> list[Job]:
    """The setting's rungs between what its ends found; none where an end failed."""
    found = {row["variant"]: row for row in rows if row["setting"] == setting.name}
    most_bytes = found[_UNCAPPED].get("predicted_peak_bytes")
    jobs = []
    for label in _ERRORS:
        least_bytes = found[f"hilore {label}"].get("smallest_feasible_cap_bytes")
        if least_bytes and most_bytes:
            caps = ladder_caps(least_bytes, most_bytes, rungs)
            jobs += [Job(setting, _capped(label, cap_bytes)) for cap_bytes in caps]
    return jobs


def ladder_caps(least_bytes: int, most_bytes: int, rungs: int) -> list[int]:
    """Caps from the smallest that is kept to the peak of storing everything, evenly spaced, ascending."""
    step = (most_bytes - least_bytes) / (rungs - 1)
    return [round(least_bytes + rung * step) for rung in range(rungs)]


def estimated_caps(plan: PlacementPlan, gradient_error: float, rungs: int) -> list[int]:
    """A ladder from the smallest cap that a plan's problem has a placement for; nothing is compiled."""
    problem = replace(plan.problem, memory_cap_bytes=1, gradient_error=gradient_error)
    least_bytes = solve(problem).smallest_feasible_cap_bytes
    assert least_bytes is not None
    return ladder_caps(least_bytes, plan.predicted_peak_bytes, rungs)


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
