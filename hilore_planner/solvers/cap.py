"""One cap: what is searched for it, and the solution that comes of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from hilore_planner.solvers.answers import placed, unplaced
from hilore_planner.solvers.candidate import Candidate
from hilore_planner.solvers.pipeline import SHARE, Engine, Search
from hilore_planner.solvers.problem import Bytes, Solution
from hilore_planner.solvers.refine import start_refinement
from hilore_planner.solvers.search import Found, Limits
from hilore_planner.solvers.structure import Structure


@dataclass(frozen=True, slots=True)
class Answer:
    """A solution with what the next cap can use.

    Attributes:
        solution: the solution.
        best: its placement, if it has one.
        floor: the least peak, if it was searched.
    """

    solution: Solution
    best: Candidate | None
    floor: Found | None


def solve_cap(
    structure: Structure,
    engine: Engine,
    cap_bytes: Bytes,
    limits: Limits,
    start: Candidate | None = None,
    floor: Found | None = None,
) -> Answer:
    """Solve for one cap, from ``start`` if that fits, with a ``floor`` if that is known.

    Every search has a refinement of its own: what one needs would only slow another down.
    """
    started = time.monotonic()
    searched = Search(structure, start_refinement(structure, start), engine)
    starts = [start, floor.best if floor is not None else None]
    start = next((each for each in starts if each and each.fits(structure, cap_bytes)), None)
    found = Found(None, 0, infeasible=floor is not None and floor.excludes(cap_bytes))
    if not found.infeasible:
        # Where nothing is known that fits, time is left to find out what does.
        part = limits if start else limits.part(1.0 - SHARE)
        found = searched.least_time(cap_bytes, part, start)
    if found.best is None:
        floor = floor or Search(structure, start_refinement(structure), engine).least_peak(limits)
        found = _decided(searched, cap_bytes, limits, found, floor)
    if found.best is not None:
        return Answer(
            placed(engine, found.best, found.bound, limits.relative_gap, started), found.best, floor
        )
    assert floor is not None  # nothing was found above
    if found.infeasible:
        floor = replace(floor, bound=max(floor.bound, cap_bytes + 1))
    solution = unplaced(engine, structure, floor, started, is_proven=found.infeasible)
    return Answer(solution, None, floor)


def _decided(
    searched: Search, cap_bytes: Bytes, limits: Limits, found: Found, floor: Found
) -> Found:
    """A placement from the least peak's, a proof that there is none, or else a longer search."""
    if floor.best is not None and floor.best.fits(searched.structure, cap_bytes):
        again = searched.least_time(cap_bytes, limits, floor.best)
        return replace(again, bound=max(found.bound, again.bound))
    if found.infeasible or floor.excludes(cap_bytes):
        return Found(None, 0, infeasible=True)
    return searched.either(cap_bytes, limits)
