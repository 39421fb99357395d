"""Solving a placement problem: an action for every unit so that the time added is least.

Problem      ``problem.PlacementProblem``.
Variables    ``variables``.
Model        ``constraints`` (1)-(7), ``objective``; written out lazily (``refine``).
Solver       HiGHS by OR-Tools MathOpt (``linear``), in the order that ``pipeline`` sets.
Check        every placement by its replay (``verify``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import get_args

from hilore_planner.errors import OptionError
from hilore_planner.solvers.ladder import Ladder
from hilore_planner.solvers.pipeline import Engine
from hilore_planner.solvers.problem import PlacementProblem, Solution
from hilore_planner.solvers.search import Limits


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
        warm_start: a placement to start from; it may be over the cap.
        engine: ``"milp"``, or ``"lp-repair"``: one LP relaxation, rounded and repaired, which is
            also what ``"milp"`` falls back on at the time limit.

    Returns:
        A solution; ``"infeasible"`` if no placement fits the cap, and ``"undecided"`` if the time
        limit passed before one was found or ruled out: both with the smallest cap that a placement
        was found for, and that placement. The gap is then that cap's: below ``(1 - gap)`` of it
        nothing can fit.

    Raises:
        OptionError: for an unknown engine.
        PlacementError: for a warm start that does not fit the problem.
    """
    check_engine(engine)
    limits = Limits(relative_gap, time.monotonic() + time_limit_seconds)
    return Ladder(problem, warm_start).solve(engine, problem.memory_cap_bytes, limits)


def check_engine(engine: str) -> None:
    """Raises where there is no such engine.

    Raises:
        OptionError: for an unknown engine.
    """
    if engine not in get_args(Engine):
        raise OptionError(f"engine {engine!r} is unknown; known are {list(get_args(Engine))}")
