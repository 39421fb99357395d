"""A thousand random problems against every placement, under the switches of the solver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from unittest import mock

from hilore_planner.solvers import PlacementProblem, Solution, pipeline, replay, solve, sweep
from tests.solvers.oracle import Truth, truth
from tests.solvers.random_problems import random_problem

AMPLE = 600.0


def exact(problem: PlacementProblem) -> Solution:
    return solve(problem, relative_gap=0.0, time_limit_seconds=AMPLE)


def within_a_tenth(problem: PlacementProblem) -> Solution:
    return solve(problem, relative_gap=0.1, time_limit_seconds=AMPLE)


def from_a_warm_start(problem: PlacementProblem) -> Solution:
    start = solve(problem, engine="lp-repair", time_limit_seconds=AMPLE)
    return solve(
        problem,
        relative_gap=0.0,
        time_limit_seconds=AMPLE,
        warm_start=start.placement or start.witness or None,
    )


def by_lp_repair(problem: PlacementProblem) -> Solution:
    return solve(problem, engine="lp-repair", time_limit_seconds=AMPLE)


def without_time(problem: PlacementProblem) -> Solution:
    return solve(problem, time_limit_seconds=0.0)


def in_a_sweep(problem: PlacementProblem) -> Solution:
    cap = problem.memory_cap_bytes
    return sweep(problem, [cap + 3, cap], relative_gap=0.0, time_limit_seconds=AMPLE)[1]


def as_if_it_were_large(problem: PlacementProblem) -> Solution:
    with mock.patch.object(pipeline, "_LARGE", 0):
        return exact(problem)


SWITCHES: tuple[tuple[Callable[[PlacementProblem], Solution], float], ...] = (
    (within_a_tenth, 0.1),
    (from_a_warm_start, 0.0),
    (by_lp_repair, 1.0),
    (without_time, 1.0),
    (in_a_sweep, 0.0),
    (as_if_it_were_large, 0.0),
)
"""With the gap that each states."""


def check(problem: PlacementProblem, best: Truth, gap: float, found: Solution) -> None:
    if not found.is_placed:
        assert found.status == "undecided" or best.least_time_ns is None
        least = found.smallest_feasible_cap_bytes
        if least is not None:
            assert best.least_peak_bytes is not None
            assert replay(problem, found.witness).peak_bytes == least >= best.least_peak_bytes
        return
    assert best.least_time_ns is not None
    replayed = replay(problem, found.placement)
    assert replayed.peak_bytes == found.peak_bytes <= problem.memory_cap_bytes
    assert replayed.risk <= problem.gradient_error**2
    assert replayed.time_ns == found.objective_ns
    assert found.bound_ns <= best.least_time_ns <= found.objective_ns
    assert found.objective_ns - best.least_time_ns <= gap * found.objective_ns
    if found.status == "optimal":
        stated = max(gap, 1e-3) if gap < 1.0 else 1e-3
        assert found.objective_ns - found.bound_ns <= stated * found.objective_ns


def test_a_thousand_random_problems() -> None:
    """Each exactly, and under one other switch in turn."""
    statuses: Counter[str] = Counter()
    for seed in range(1000):
        problem = random_problem(seed)
        best = truth(problem)
        for switch, gap in ((exact, 0.0), SWITCHES[seed % len(SWITCHES)]):
            found = switch(problem)
            try:
                check(problem, best, gap, found)
                assert gap == 1.0 or found.status != "undecided"
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {switch.__name__}: {found}") from error
            statuses[found.status] += 1
    # No kind of answer is rare among them.
    assert statuses["optimal"] > 500
    assert statuses["infeasible"] > 300
