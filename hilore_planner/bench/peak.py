"""``hilore bench peak``: is the cap real? Predicted against measured peaks over a ladder of caps.

For each setting the update is first compiled with all the memory it likes, and with none at all: the error then names
the smallest cap that is kept. The ladder lies between the two. Every rung is compiled and measured, exact and
compressed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hilore_planner import margins
from hilore_planner.bench.runner import Job, Row, run_as_ready, this_commit
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import solve

COMPRESSED_ERROR = 0.05
"""Error budget of the compressed rungs: large enough that compression is used at all."""

ERRORS = {"exact": 0.0, "compressed": COMPRESSED_ERROR}
_COSTS = "roofline"
"""Where times come from: measuring them takes longer than all else, and does not change what is asked here."""
SAVED_AS = "hilore, saved bytes of {}"
"""Name of a plan that saves no more than another way to run the update."""


@dataclass(frozen=True, slots=True)
class Runs:
    """How jobs are run, and rows of earlier calls, each with its commit.

    Cells of this commit are not measured again, nor are the ends of ladders, whatever their commit: they only say
    where a ladder lies.
    """

    device: str
    side_by_side: int
    earlier: Sequence[Row] = ()

    def known(self) -> list[Row]:
        """Rows that need not be measured again."""
        ends = {_cell(variant) for variant in _ends()}
        return [
            row
            for row in self.earlier
            if ("error" not in row or row.get("refused"))
            and (row["commit"] == this_commit() or (row["variant"], row["cap_bytes"]) in ends)
        ]


def bench_peak(settings: Sequence[Setting], *, rungs: int, runs: Runs) -> Iterator[list[Row]]:
    """All rows of a setting so far, whenever there is one more: the ends of its ladders, then their rungs."""
    climbs = {setting.name: Climb(setting, rungs) for setting in settings}
    queue = Queue(list(climbs), runs.side_by_side)
    for row in runs.known():
        if row["setting"] in climbs:
            climbs[row["setting"]].add(row)

    def then(row: Row) -> list[Job]:
        climb = climbs[row["setting"]]
        climb.add(row)
        queue.free += 1
        return queue.taken(climb.next_jobs())

    first = queue.taken([job for climb in climbs.values() for job in climb.next_jobs()])
    yield from (climb.ordered_rows() for climb in climbs.values() if climb.rows)
    for row in run_as_ready(first, then, device=runs.device, side_by_side=runs.side_by_side):
        yield climbs[row["setting"]].ordered_rows()


@dataclass(slots=True)
class Queue:
    """Jobs that wait for one of the ``free`` processes.

    Those of earlier settings come first, so that what is cut short leaves whole ladders; while one's ends are looked
    for, others climb.
    """

    order: Sequence[str]
    free: int
    _waiting: list[Job] = field(default_factory=list)

    def taken(self, new: Sequence[Job]) -> list[Job]:
        """With ``new`` ones behind those that wait: the jobs to start now."""
        waiting = [*self._waiting, *new]
        waiting.sort(key=lambda job: self.order.index(job.setting.name))
        started, self._waiting = waiting[: self.free], waiting[self.free :]
        self.free -= len(started)
        return started


_Cell = tuple[str, int | None]
"""A variant and its cap."""


@dataclass(slots=True)
class Climb:
    """One setting's ladders: the rows there are, and the jobs that they lead to.

    Rungs are climbed from the smallest cap on. When a whole ladder has been climbed all plans are known; where one of
    another cap is better, the rung is compiled once more.
    """

    setting: Setting
    rungs: int
    rows: dict[_Cell, Row] = field(default_factory=dict)
    _asked: set[_Cell] = field(default_factory=set)
    _repeated: set[_Cell] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """One more row, in place of the one of the same cell."""
        self.rows[row["variant"], row["cap_bytes"]] = row

    def next_jobs(self) -> list[Job]:
        """What is to be run now, and was not asked for before."""
        wanted = _ends() + [v for label in ERRORS for v in self._rungs(label)]
        new = {_cell(v): v for v in wanted if _cell(v) not in self.rows.keys() | self._asked}
        late = {_cell(v): v for label in ERRORS for v in self._late(label)}
        self._asked |= new.keys()
        self._repeated |= late.keys()
        return [Job(self.setting, variant) for variant in (*new.values(), *late.values())]

    def ordered_rows(self) -> list[Row]:
        """By ladder and cap; what has none first."""
        return sorted(self.rows.values(), key=lambda row: (_place(row), row["cap_bytes"] or 0))

    def _rungs(self, label: str) -> list[Variant]:
        """A ladder's rungs between what its ends found; none before they are there, or where one failed."""
        most_bytes = self.rows.get(_cell(_UNCAPPED), {}).get("predicted_peak_bytes")
        lowest = self.rows.get(_cell(_capped(label, 1)), {})
        least_bytes = lowest.get("smallest_feasible_cap_bytes")
        if not least_bytes or not most_bytes:
            return []
        return [_capped(label, cap) for cap in ladder_caps(least_bytes, most_bytes, self.rungs)]

    def _late(self, label: str) -> list[Variant]:
        """Rungs of a whole ladder for which another's plan is better, each once."""
        rungs = self._rungs(label)
        rows = [self.rows[_cell(v)] for v in rungs if _cell(v) in self.rows]
        if len(rows) < len(rungs):
            return []
        return [
            variant
            for variant, row in zip(rungs, rows, strict=True)
            if _cell(variant) not in self._repeated and is_overtaken(row, rows)
        ]


def _cell(variant: Variant) -> _Cell:
    return variant.name, variant.cap_bytes


def _place(row: Row) -> int:
    return [variant.name for variant in _ends()].index(row["variant"])


def is_overtaken(row: Row, ladder: Sequence[Row]) -> bool:
    """Whether another cap's plan would fit a row's cap and is faster, or as fast with less memory."""
    if "objective_ns" not in row:
        return False
    return any(
        other["predicted_peak_bytes"] <= row["cap_bytes"] and _rank(other) < _rank(row)
        for other in ladder
        if "objective_ns" in other
    )


def _rank(row: Row) -> tuple[int, int]:
    return _added_ns(row), row["predicted_peak_bytes"]


def _added_ns(row: Row) -> int:
    """Time that placement and head add."""
    return int(row["objective_ns"] + row["head_ns"])


def _capped(label: str, cap_bytes: int) -> Variant:
    return Variant(
        f"hilore {label}",
        "hilore",
        cap_bytes=cap_bytes,
        gradient_error=ERRORS[label],
        costs=_COSTS,
    )


_UNCAPPED = Variant("hilore uncapped", "hilore", costs=_COSTS)


def _ends() -> list[Variant]:
    return [_UNCAPPED, *(_capped(label, 1) for label in ERRORS)]


def ladder_caps(least_bytes: int, most_bytes: int, rungs: int) -> list[int]:
    """Caps from the smallest that is kept to the peak of storing everything, evenly spaced, ascending."""
    step = (most_bytes - least_bytes) / (rungs - 1)
    return [round(least_bytes + rung * step) for rung in range(rungs)]


def estimated_caps(plan: PlacementPlan, gradient_error: float, rungs: int) -> list[int]:
    """A ladder from the smallest cap that a plan's problem has a placement for; nothing is compiled."""
    problem = margins.for_cap(plan, 1).problem
    problem = replace(problem, memory_cap_bytes=1, gradient_error=gradient_error)
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
    peaks, times = ([row[field] for row in done] for field in ("measured_peak_bytes", "time_ms"))
    planned = "planned times are not known"  # of older rows
    if all("head_ns" in row for row in done):
        planned = f"planned times rise {_falls([_added_ns(row) for row in reversed(done)])} times"
    return (
        f"{setting}, {variant}: {len(done)} of {len(ladder)} cells; predicted/measured "
        f"{min(ratios, default=0):.4f} to {max(ratios, default=0):.4f}; over the cap {over}; as the cap grows, peaks "
        f"fall {_falls(peaks)} times, {planned}, measured ones {_falls(times[::-1])} times"
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
