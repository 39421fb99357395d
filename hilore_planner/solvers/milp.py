"""Solving a placement problem: an action for every unit so that the time added is least.

Problem      ``problem.PlacementProblem``.
Variables    ``variables``.
Model        ``constraints`` (1)-(7), ``objective``; written out lazily (``refine``).
Solver       HiGHS by OR-Tools MathOpt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, get_args

from hilore_planner.errors import OptionError
from hilore_planner.solvers.problem import PlacementProblem, Solution
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.search import (
    Candidate,
    Found,
    LeastPeak,
    LeastTime,
    Limits,
    candidate,
    closed,
    search,
    start_refinement,
)
from hilore_planner.solvers.structure import Structure, analyse

Engine = Literal["milp", "lp-repair"]

_FENCES = (0, 1, 2)
"""How many layers ahead placements may rebuild that are searched before all others."""

_FENCED_SHARE = 0.3
"""Of the time that is left."""


def solve(
    problem: PlacementProblem,
    *,
    time_limit_seconds: float = 10.0,
    relative_gap: float = 1e-3,
    warm_start: Mapping[str, str] | None = None,
    engine: Engine = "milp",
) -> Solution:
    """The fastest placement within the memory cap and the risk budget.

    Args:
        problem: the problem.
        time_limit_seconds: after this the best placement so far is returned, as ``"feasible"``.
        relative_gap: a placement proven within this of the fastest is ``"optimal"``.
        warm_start: a placement to start from; it may be over the cap or the risk budget.
        engine: ``"milp"`` or ``"lp-repair"``.

    Returns:
        A solution; ``"infeasible"`` if no placement fits the cap, with the smallest cap that one
        was found for. Its gap is then that cap's: below ``(1 - gap)`` of it nothing can fit.

    Raises:
        OptionError: for an unknown engine.
        PlacementError: for a warm start that does not fit the problem.
    """
    if engine not in get_args(Engine):
        raise OptionError(f"engine {engine!r} is unknown; known are {list(get_args(Engine))}")
    started = time.monotonic()
    limits = Limits(relative_gap, started + time_limit_seconds)
    structure = analyse(problem)
    refinement = start_refinement(structure)
    start = None if warm_start is None else candidate(structure, warm_start)
    goal = LeastTime(problem.memory_cap_bytes)
    if start is not None and (
        not goal.accepts(start.replay) or start.replay.risk > structure.risk_budget
    ):
        start = None
    first = search(goal, structure, refinement, limits, start, rounds=1)
    best = first.best or _fenced(goal, structure, refinement, limits)
    if best is None:
        floor = _least_peak(structure, refinement, limits)
        if floor.best is None or not goal.accepts(floor.best.replay):
            return _infeasible(structure, floor, engine, time.monotonic() - started)
        best = floor.best
    bound = first.bound
    if not closed(best.replay.time_ns, bound, relative_gap):
        found = search(goal, structure, refinement, limits, best)
        best, bound = found.best or best, max(bound, found.bound)
    return _solution(best, bound, limits, engine, time.monotonic() - started)


def _fenced(
    goal: LeastTime, structure: Structure, refinement: Refinement, limits: Limits
) -> Candidate | None:
    """A placement that rebuilds no further ahead than it must to be under the cap."""
    for layers in _FENCES:
        fenced = refinement.fenced(structure.fences(layers))
        if fenced.fences:
            found = search(goal, structure, fenced, limits.part(_FENCED_SHARE))
            if found.best is not None:
                return found.best
    return None


def _least_peak(structure: Structure, refinement: Refinement, limits: Limits) -> Found:
    """Fenced placements first, further and further ahead, then any."""
    fixed_bytes = max((p.fixed_bytes for p in structure.problem.positions), default=0)
    # A tenth of the gap; below one byte, and so exact, where that is less.
    goal = LeastPeak(max(0.1 * limits.relative_gap * fixed_bytes, 0.4))
    best: Candidate | None = None
    for layers in _FENCES:
        fenced = refinement.fenced(structure.fences(layers))
        if fenced.fences:
            best = search(goal, structure, fenced, limits.part(_FENCED_SHARE), best).best
    return search(goal, structure, refinement, limits.part(_FENCED_SHARE), best)


def _solution(
    best: Candidate, bound_ns: int, limits: Limits, engine: Engine, seconds: float
) -> Solution:
    objective_ns = best.replay.time_ns
    bound_ns = min(bound_ns, objective_ns)
    optimal = closed(objective_ns, bound_ns, limits.relative_gap)
    return Solution(
        status="optimal" if optimal else "feasible",
        engine=engine,
        placement=best.placement,
        objective_ns=objective_ns,
        bound_ns=bound_ns,
        gap=(objective_ns - bound_ns) / max(objective_ns, 1),
        solver_seconds=seconds,
        peak_bytes=best.replay.peak_bytes,
        peak_position=best.replay.peak_position,
        saved_bytes=best.replay.saved_bytes,
        risk=best.replay.risk,
    )


def _infeasible(structure: Structure, floor: Found, engine: Engine, seconds: float) -> Solution:
    best = floor.best
    least_bytes = None if best is None else best.replay.peak_bytes
    return Solution(
        status="infeasible",
        engine=engine,
        placement={},
        objective_ns=0,
        bound_ns=0,
        gap=0.0 if least_bytes is None else (least_bytes - floor.bound) / max(least_bytes, 1),
        solver_seconds=seconds,
        peak_bytes=0,
        peak_position=0,
        saved_bytes=0,
        risk=0.0,
        smallest_feasible_cap_bytes=least_bytes,
        holding=_holding(structure, best),
    )


def _holding(structure: Structure, best: Candidate | None) -> tuple[str, ...]:
    """What is alive at the least peak; where no cap would do, what cannot be at hand."""
    if best is not None:
        return tuple(name for name, _ in best.replay.owners(best.replay.peak_position))
    return tuple(
        unit.name
        for unit, forms in zip(structure.problem.units, structure.forms, strict=True)
        if unit.read_at and not (unit.can_store or unit.can_recompute or forms)
    )
