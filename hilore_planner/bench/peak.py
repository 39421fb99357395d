"""``hilore bench peak``: is the cap real? Predicted against measured peaks over a ladder of caps.

For each setting the update is first compiled with all the memory it likes, and with none at all: the error then names
the smallest cap that is kept. The ladder lies between the two. Every rung is compiled and measured, exact and
compressed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hilore_planner.bench.runner import Job, Row, run_jobs
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import solve

COMPRESSED_ERROR = 0.05
"""Error budget of the compressed rungs: large enough that compression is used at all."""

ERRORS = {"exact": 0.0, "compressed": COMPRESSED_ERROR}
_COSTS = "roofline"
"""Where times come from: measuring them takes longer than all else, and does not change what is asked here."""
_UNCAPPED = "hilore uncapped"
SAVED_AS = "hilore, saved bytes of {}"
"""Name of a plan that saves no more than another way to run the update."""


@dataclass(frozen=True, slots=True)
class Runs:
    """How jobs are run, and rows that need not be measured again."""

    device: str
    side_by_side: int
    known: Sequence[Row] = ()

    def rows(self, jobs: Sequence[Job], *, is_new: bool = False) -> list[Row]:
        """Rows of the jobs in order; measured, whatever is known, where ``is_new``."""
        known = {} if is_new else {_cell(row): row for row in self.known}
        cells = [(job.setting.name, job.variant.name, job.variant.cap_bytes) for job in jobs]
        missing = [job for job, cell in zip(jobs, cells, strict=True) if cell not in known]
        measured = iter(run_jobs(missing, device=self.device, side_by_side=self.side_by_side))
        return [known[cell] if cell in known else next(measured) for cell in cells]


def _cell(row: Row) -> tuple[str, str, int | None]:
    return row["setting"], row["variant"], row["cap_bytes"]


def bench_peak(settings: Sequence[Setting], *, rungs: int, runs: Runs) -> Iterator[list[Row]]:
    """Rows as they come, of one setting after another: the ends of its ladders, then some rungs at a time.

    Rungs are climbed from the smallest cap on. Plans of those below are known by then, so that none is slower; what was
    compiled at the same time may be, and is then compiled once more.
    """
    for setting in settings:
        ends = runs.rows([Job(setting, variant) for variant in _ends()])
        yield ends
        done: list[Row] = []
        jobs = _ladder(setting, ends, rungs)
        for start in range(0, len(jobs), runs.side_by_side):
            group = jobs[start : start + runs.side_by_side]
            part = runs.rows(group)
            late = [i for i, row in enumerate(part) if _is_overtaken(row, [*done, *part])]
            again = runs.rows([group[i] for i in late], is_new=True)
            for i, row in zip(late, again, strict=True):
                part[i] = row
            done += part
            yield part


def _is_overtaken(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a smaller cap of the same ladder has a faster plan."""
    return any(
        other["variant"] == row["variant"]
        and other["cap_bytes"] < row["cap_bytes"]
        and other["objective_ns"] < row["objective_ns"]
        for other in rows
        if "objective_ns" in other and "objective_ns" in row
    )


def _ends() -> list[Variant]:
    refused = (_capped(label, 1) for label in ERRORS)
    return [Variant(_UNCAPPED, "hilore", costs=_COSTS), *refused]


def _capped(label: str, cap_bytes: int) -> Variant:
    return Variant(
        f"hilore {label}",
        "hilore",
        cap_bytes=cap_bytes,
        gradient_error=ERRORS[label],
        costs=_COSTS,
    )


def _ladder(setting: Setting, rows: Sequence[Row], rungs: int) -> list[Job]:
    """The setting's rungs between what its ends found; none where an end failed."""
    found = {row["variant"]: row for row in rows if row["setting"] == setting.name}
    most_bytes = found[_UNCAPPED].get("predicted_peak_bytes")
    jobs = []
    for label in ERRORS:
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
    """What the rows say: worst ratios, caps held, order of peaks and times, and how others compare."""
    cells = [row for row in rows if row["cap_bytes"] and not row.get("refused")]
    names = dict.fromkeys((row["setting"], row["variant"]) for row in cells)
    return [_ladder_line(*name, cells) for name in names] + list(_rival_lines(rows))


def _ladder_line(setting: str, variant: str, cells: Sequence[Row]) -> str:
    ladder = [row for row in cells if (row["setting"], row["variant"]) == (setting, variant)]
    done = [row for row in ladder if "error" not in row]
    ratios = [row["predicted_peak_bytes"] / row["measured_peak_bytes"] for row in done]
    over = sum(row["measured_peak_bytes"] > row["cap_bytes"] for row in done)
    peaks, times, added = (
        [row[field] for row in done] for field in ("measured_peak_bytes", "time_ms", "objective_ns")
    )
    return (
        f"{setting}, {variant}: {len(done)} of {len(ladder)} cells; predicted/measured "
        f"{min(ratios, default=0):.4f} to {max(ratios, default=0):.4f}; over the cap {over}; as the cap grows, peaks "
        f"fall {_falls(peaks)} times, planned times rise {_falls(added[::-1])} times, measured ones "
        f"{_falls(times[::-1])} times"
    )


def _rival_lines(rows: Sequence[Row]) -> Iterator[str]:
    found = {(row["setting"], row["variant"]): row for row in rows}
    for (setting, variant), row in found.items():
        ours = found.get((setting, SAVED_AS.format(variant)))
        if ours is not None:
            planned = "no plan saves so little"
            if not ours["refused"]:
                planned = (
                    f"planned {ours['measured_peak_bytes']} with {ours['measured_saved_bytes']}"
                )
            yield (
                f"{setting}, {variant}: peak {row['measured_peak_bytes']} bytes with "
                f"{row['measured_saved_bytes']} saved; {planned}"
            )


def _falls(values: Sequence[float]) -> int:
    return sum(after < before for before, after in itertools.pairwise(values))
