"""Many caps at once."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import OptionError
from hilore_planner.solvers import (
    PlacementProblem,
    folded_search,
    local,
    pipeline,
    replay,
    search,
    solve,
    sweep,
)
from hilore_planner.solvers.linear import LinearModel, LinearResult, solve_linear
from tests.solvers.layered import GIB, Shape, transformer
from tests.solvers.oracle import truth
from tests.solvers.strategies import layered_problems, problems


@given(st.one_of(problems(), layered_problems()))
def test_every_cap_is_as_solved_alone(problem: PlacementProblem) -> None:
    cap = problem.memory_cap_bytes
    caps = (cap + 5, cap // 2, cap, cap)
    swept = sweep(problem, caps, relative_gap=0.0, time_limit_seconds=600.0)
    for at, found in zip(caps, swept, strict=True):
        best = truth(dataclasses.replace(problem, memory_cap_bytes=at))
        if best.least_time_ns is None:
            assert found.status == "infeasible"
            assert found.smallest_feasible_cap_bytes == best.least_peak_bytes
        else:
            assert found.objective_ns == found.bound_ns == best.least_time_ns
            assert found.peak_bytes <= at


def test_more_memory_never_costs_time() -> None:
    problem = transformer(Shape(layers=6), cap_bytes=0)
    caps = [GIB * eighths // 8 for eighths in range(100, 200, 8)]
    found = sweep(problem, caps, relative_gap=0.05, time_limit_seconds=600.0)
    assert found[0].status == "infeasible"
    least = found[0].smallest_feasible_cap_bytes
    assert least is not None
    feasible = [s for cap, s in zip(caps, found, strict=True) if cap >= least]
    assert len(feasible) >= 8
    assert all(s.status == "infeasible" for s in found[: -len(feasible)])
    for smaller, larger in pairwise(feasible):
        assert larger.objective_ns <= smaller.objective_ns
        assert larger.bound_ns <= smaller.bound_ns
    for cap, solution in zip(caps[-len(feasible) :], feasible, strict=True):
        assert replay(problem, solution.placement).peak_bytes <= cap
        assert solution.bound_ns <= solution.objective_ns


def test_a_warm_start_is_used_where_it_fits() -> None:
    problem = transformer(Shape(layers=2), cap_bytes=40 * GIB)
    start = solve(problem).placement
    (found,) = sweep(problem, [40 * GIB], warm_start=start, time_limit_seconds=0.0)
    assert found.placement == start


def test_a_start_says_where_the_peaks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # Logits of few tokens at once, so that the layers themselves are the peak.
    roomy = transformer(Shape(layers=8, head_tokens=512), cap_bytes=10**3 * GIB)
    most_bytes = solve(roomy).peak_bytes
    start = solve(dataclasses.replace(roomy, memory_cap_bytes=most_bytes * 7 // 10)).placement
    near = dataclasses.replace(roomy, memory_cap_bytes=most_bytes * 8 // 10)
    programs: list[LinearModel] = []

    def counted(model: LinearModel, **options: Any) -> LinearResult:
        programs.append(model)
        return solve_linear(model, **options)

    for module in (folded_search, local, search, pipeline):
        monkeypatch.setattr(module, "solve_linear", counted)
    assert solve(near).status == "optimal"
    alone = len(programs)
    assert solve(near, warm_start=start).status == "optimal"
    assert len(programs) - alone < alone


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(OptionError, match="simplex"):
        sweep(transformer(Shape(layers=1), cap_bytes=0), [GIB], engine="simplex")  # type: ignore[arg-type]


def test_a_warm_start_that_fits_late_does_not_hide_the_caps_below() -> None:
    problem = transformer(Shape(layers=4), cap_bytes=10**3 * GIB)
    start = solve(problem).placement
    caps = [GIB * sixths // 6 for sixths in range(90, 110, 2)]
    found = sweep(problem, caps, warm_start=start, relative_gap=0.2, time_limit_seconds=600.0)
    for smaller, larger in pairwise(s for s in found if s.status != "infeasible"):
        assert larger.objective_ns <= smaller.objective_ns
