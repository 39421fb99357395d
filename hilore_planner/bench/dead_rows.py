"""``hilore bench dead-rows``: what leaving out sequences without a gradient saves, and planning on top of it.

The default batch has the share of zero-advantage responses seen on GSM8K (62.9%, verl issue 5770).
"""

from __future__ import annotations

from collections.abc import Sequence

from hilore_planner.bench.runner import Job, Row, run_jobs
from hilore_planner.bench.setting import Kind, Setting, Variant

DROPPED = " without dead rows"


def bench_dead_rows(
    setting: Setting, *, cap_bytes: int, device: str, side_by_side: int
) -> list[Row]:
    """One row for each way to run the whole batch and the live part of it."""
    kinds: tuple[Kind, ...] = ("gc", "hilore")
    jobs = [
        Job(
            setting,
            Variant(
                kind + (DROPPED if drop else ""),
                kind,
                cap_bytes=cap_bytes if kind == "hilore" else None,
                drop_dead=drop,
            ),
        )
        for drop in (False, True)
        for kind in kinds
    ]
    return list(run_jobs(jobs, device=device, side_by_side=side_by_side))


def summary(rows: Sequence[Row]) -> list[str]:
    """Time of each way without dead rows as a share of the same way with them."""
    times = {row["variant"]: row["time_ms"] for row in rows if "error" not in row}
    return [
        f"{name}: {times[name + DROPPED]:.1f} of {whole:.1f} ms, {times[name + DROPPED] / whole:.1%}"
        for name, whole in times.items()
        if name + DROPPED in times
    ]
