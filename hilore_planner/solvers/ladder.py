"""What is recomputed from copies is charged for the coarsest codec of the placement: a problem for each that may be.

Each is a program of its own, in which coarser codecs are missing and the charge is fixed. None is better for all caps:
with coarse codecs little can be made again, with fine ones copies save less.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hilore_planner.solvers.answers import placed
from hilore_planner.solvers.candidate import Candidate, candidate
from hilore_planner.solvers.cap import solve_cap
from hilore_planner.solvers.pipeline import Engine
from hilore_planner.solvers.problem import Bytes, PlacementProblem, Solution, Unit, kept_codec
from hilore_planner.solvers.search import Found, Limits
from hilore_planner.solvers.structure import Structure, analyse
from hilore_planner.solvers.verify import refigured, replay

_FIRST = 0.15
"""Share of the time left that each program may take at first: most are solved by then."""
_MOST = 0.6
"""Share that each of the others may take then, but for the last."""
_OPEN = ("feasible", "undecided")


@dataclass(slots=True)
class Rung:
    """The problem with the codecs up to one of the ladder, and what is known of it."""

    structure: Structure
    known: list[Candidate] = field(default_factory=list)
    floor: Found | None = None

    def solve(self, engine: Engine, cap_bytes: Bytes, limits: Limits) -> Solution:
        """Solve for a cap, from the fastest placement known that fits it."""
        start = self.fastest(cap_bytes)
        answer = solve_cap(self.structure, engine, cap_bytes, limits, start, self.floor)
        self.floor = answer.floor
        self.known += [answer.best] if answer.best is not None else []
        return answer.solution

    def fastest(self, cap_bytes: Bytes) -> Candidate | None:
        """Of the placements known, under a cap."""
        fitting = (each for each in self.known if each.fits(self.structure, cap_bytes))
        return min(fitting, key=_time_ns, default=None)

    def start_from(self, placement: Mapping[str, str]) -> None:
        """Know a placement, unless a codec of it is missing here."""
        codecs = {form.codec for unit in self.structure.problem.units for form in unit.codecs}
        if all(codec is None or codec in codecs for codec in map(kept_codec, placement.values())):
            self.known.append(candidate(self.structure, placement))


class Ladder:
    """A problem, solved for one cap after another.

    Raises:
        PlacementError: for a warm start that does not fit the problem.
    """

    def __init__(self, problem: PlacementProblem, warm_start: Mapping[str, str] | None) -> None:
        self._problem = problem
        self._rungs = [Rung(analyse(each)) for each in rungs(problem)]
        if warm_start is not None:
            replay(problem, warm_start)
            for rung in self._rungs:
                rung.start_from(warm_start)

    def solve(self, engine: Engine, cap_bytes: Bytes, limits: Limits) -> Solution:
        """The fastest placement of any rung; of none, the smallest cap that one was found for."""
        if len(self._rungs) == 1:
            return self._rungs[0].solve(engine, cap_bytes, limits)
        started = time.monotonic()
        found = self._searched(engine, cap_bytes, limits)
        best = self._fastest(cap_bytes)
        if best is None:
            return replace(_none_placed(found), solver_seconds=time.monotonic() - started)
        bound_ns = min((e.bound_ns for e in found if e.status != "infeasible"), default=0)
        solution = placed(engine, best, bound_ns, limits.relative_gap, started)
        return refigured(solution, replay(self._problem, solution.placement))

    def _searched(self, engine: Engine, cap_bytes: Bytes, limits: Limits) -> list[Solution]:
        """Of each rung, once all that may be fastest were given the time that they need."""
        found = [rung.solve(engine, cap_bytes, limits.part(_FIRST)) for rung in self._rungs]
        left = [place for place, each in enumerate(found) if each.status in _OPEN]
        left.sort(key=lambda place: (not found[place].is_placed, found[place].bound_ns))
        for count, place in enumerate(left, start=1):
            best, bound_ns = self._fastest(cap_bytes), found[place].bound_ns
            is_closed = best is not None and limits.close(_time_ns(best), bound_ns)
            if engine == "lp-repair" or is_closed:
                continue
            part = limits if count == len(left) else limits.part(_MOST)
            answer = self._rungs[place].solve(engine, cap_bytes, part)
            found[place] = replace(answer, bound_ns=max(answer.bound_ns, bound_ns))
        return found

    def _fastest(self, cap_bytes: Bytes) -> Candidate | None:
        known = (rung.fastest(cap_bytes) for rung in self._rungs)
        return min((each for each in known if each is not None), key=_time_ns, default=None)


def rungs(problem: PlacementProblem) -> list[PlacementProblem]:
    """The problem with the codecs up to each of its ladder, coarsest first; those that gain nothing are left out.

    These are those whose coarsest codec no unit can afford, and those that charge as much as the one before.
    """
    budget = problem.gradient_error**2
    found: list[PlacementProblem] = []
    affordable = {
        form.codec for unit in problem.units for form in unit.codecs if form.risk <= budget
    }
    for rung in reversed(range(len(problem.ladder))):
        if problem.ladder[rung] in affordable:
            each = _up_to(problem, rung)
            if not found or _charges(each) != _charges(found[-1]):
                found.append(each)
    return found or [replace(problem, ladder=())]


def _up_to(problem: PlacementProblem, rung: int) -> PlacementProblem:
    missing = frozenset(problem.ladder[rung + 1 :])
    return replace(
        problem, units=tuple(_without(unit, missing, rung) for unit in problem.units), ladder=()
    )


def _without(unit: Unit, missing: frozenset[str], rung: int) -> Unit:
    return replace(
        unit,
        codecs=tuple(form for form in unit.codecs if form.codec not in missing),
        inexact_risk=unit.inexact_risks[rung],
        finer_inexact_risks=(),
    )


def _charges(problem: PlacementProblem) -> tuple[float, ...]:
    return tuple(unit.inexact_risk for unit in problem.units)


def _time_ns(known: Candidate) -> int:
    return known.replay.time_ns


def _none_placed(found: Sequence[Solution]) -> Solution:
    """The smallest cap that any found a placement for, and what bounds that of all."""
    is_proven = all(each.status == "infeasible" for each in found)
    known = [each for each in found if each.smallest_feasible_cap_bytes is not None]
    least = min(known, key=_smallest_cap_bytes, default=found[0])
    bound_bytes = min(((1 - each.gap) * _smallest_cap_bytes(each) for each in known), default=0.0)
    return replace(
        least,
        status="infeasible" if is_proven else "undecided",
        gap=1 - bound_bytes / max(_smallest_cap_bytes(least), 1) if known else 0.0,
    )


def _smallest_cap_bytes(found: Solution) -> Bytes:
    return found.smallest_feasible_cap_bytes or 0
