"""The truth on small problems: every placement, replayed by the verifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from hilore_planner.errors import PlacementError
from hilore_planner.solvers import PlacementProblem, Unit, replay


@dataclass(frozen=True, slots=True)
class Truth:
    """None where no placement exists."""

    least_time_ns: int | None
    least_peak_bytes: int | None


def truth(problem: PlacementProblem) -> Truth:
    budget = problem.gradient_error**2
    times: list[int] = []
    peaks: list[int] = []
    for placement in placements(problem):
        try:
            found = replay(problem, placement)
        except PlacementError:
            continue
        if found.risk > budget * (1 + 1e-9):
            continue
        peaks.append(found.peak_bytes)
        if found.peak_bytes <= problem.memory_cap_bytes:
            times.append(found.time_ns)
    return Truth(min(times, default=None), min(peaks, default=None))


def placements(problem: PlacementProblem) -> Iterator[dict[str, str]]:
    for actions in product(*(_actions(unit) for unit in problem.units)):
        yield {
            unit.name: action
            for unit, action in zip(problem.units, actions, strict=True)
            if action is not None
        }


def _actions(unit: Unit) -> list[str | None]:
    return [
        *(["store"] if unit.can_store else []),
        *(["recompute"] if unit.can_recompute else []),
        *(f"compress:{form.codec}" for form in unit.codecs),
        *([] if unit.read_at else [None]),
    ]
