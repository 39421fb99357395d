"""One problem under many caps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hilore_planner.solvers.ladder import Ladder
from hilore_planner.solvers.milp import check_engine
from hilore_planner.solvers.pipeline import Engine
from hilore_planner.solvers.problem import Bytes, PlacementProblem, Solution
from hilore_planner.solvers.search import Limits, closed


def sweep(
    problem: PlacementProblem,
    caps: Sequence[Bytes],
    *,
    time_limit_seconds: float = 10.0,
    relative_gap: float = 1e-3,
    warm_start: Mapping[str, str] | None = None,
    engine: Engine = "milp",
) -> tuple[Solution, ...]:
    """Solve ``problem`` for every cap; its own is not used.

    More memory never costs time: what fits a cap fits any larger one, so each solve starts from the
    placements of the caps below, and a bound for a cap holds for every smaller one.

    Args:
        problem: the problem.
        caps: bytes, in any order.
        time_limit_seconds: for each cap.
        relative_gap: as for ``solve``, like the rest.
        warm_start: a placement to start from.
        engine: what solves.

    Returns:
        A solution for each cap, in the order given.

    Raises:
        OptionError: for an unknown engine.
        PlacementError: for a warm start that does not fit the problem.
    """
    check_engine(engine)
    ladder = Ladder(problem, warm_start)
    solutions: dict[Bytes, Solution] = {}
    for cap_bytes in sorted(set(caps)):
        limits = Limits(relative_gap, time.monotonic() + time_limit_seconds)
        solutions[cap_bytes] = ladder.solve(engine, cap_bytes, limits)
    _carry_bounds(solutions, relative_gap)
    return tuple(solutions[cap_bytes] for cap_bytes in caps)


def _carry_bounds(solutions: dict[Bytes, Solution], relative_gap: float) -> None:
    """Raise every bound to those of larger caps."""
    bound_ns = 0
    for cap_bytes in sorted(solutions, reverse=True):
        solution = solutions[cap_bytes]
        if not solution.is_placed:
            continue
        bound_ns = max(bound_ns, solution.bound_ns)
        objective_ns = solution.objective_ns
        solutions[cap_bytes] = replace(
            solution,
            status="optimal" if closed(objective_ns, bound_ns, relative_gap) else "feasible",
            bound_ns=bound_ns,
            gap=(objective_ns - bound_ns) / max(objective_ns, 1),
        )
