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

from hilore_planner.errors import HiloreError, OptionError
from hilore_planner.solvers.problem import PlacementProblem, Solution
from hilore_planner.solvers.search import (
    Candidate,
    Found,
    Limits,
    candidate,
    closed,
    least_peak,
    least_time,
    start_refinement,
)
from hilore_planner.solvers.structure import Structure, analyse

Engine = Literal["milp", "lp-repair"]


class SolverLimitError(HiloreError):
    """The time limit passed before any placement was found, or shown not to exist."""


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
        A solution; ``"infeasible"`` with the smallest feasible cap if nothing fits.

    Raises:
        OptionError: for an unknown engine.
        SolverLimitError: if the limit passed with nothing found and nothing proven.
    """
    if engine not in get_args(Engine):
        raise OptionError(f"engine {engine!r} is unknown; known are {list(get_args(Engine))}")
    started = time.monotonic()
    limits = Limits(relative_gap, started + time_limit_seconds)
    structure = analyse(problem)
    refinement = start_refinement(structure)
    start = None if warm_start is None else candidate(structure, warm_start)
    if start is not None and not _fits(start, structure):
        start = None
    found = least_time(structure, refinement, problem.memory_cap_bytes, limits, start)
    best = found.candidate
    if best is None:
        floor = least_peak(structure, refinement, limits)
        best = floor.candidate
        if best is None or best.replay.peak_bytes > problem.memory_cap_bytes:
            proven = found.infeasible or floor.infeasible or floor.bound > problem.memory_cap_bytes
            if not proven:
                raise SolverLimitError(_nothing_found(problem, floor, time_limit_seconds))
            return _infeasible(floor, engine, time.monotonic() - started)
    return _solution(best, found.bound, limits, engine, time.monotonic() - started)


def _fits(start: Candidate, structure: Structure) -> bool:
    """Whether a placement is within the cap and the risk budget."""
    within_cap = start.replay.peak_bytes <= structure.problem.memory_cap_bytes
    return within_cap and start.replay.risk <= structure.risk_budget


def _nothing_found(problem: PlacementProblem, floor: Found, seconds: float) -> str:
    best = floor.candidate
    least = "none" if best is None else f"{best.replay.peak_bytes} bytes"
    return (
        f"memory cap {problem.memory_cap_bytes} bytes: no placement found in {seconds} s, and none "
        f"ruled out (least peak found: {least}, proven: {floor.bound} bytes); allow more time"
    )


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


def _infeasible(floor: Found, engine: Engine, seconds: float) -> Solution:
    best = floor.candidate
    holding: tuple[str, ...] = ()
    if best is not None:
        holding = tuple(name for name, _ in best.replay.owners(best.replay.peak_position))
    return Solution(
        status="infeasible",
        engine=engine,
        placement={},
        objective_ns=0,
        bound_ns=0,
        gap=0.0,
        solver_seconds=seconds,
        peak_bytes=0,
        peak_position=0,
        saved_bytes=0,
        risk=0.0,
        smallest_feasible_cap_bytes=None if best is None else best.replay.peak_bytes,
        holding=holding,
    )
