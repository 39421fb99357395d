"""The folded program's bound."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.solvers import PlacementProblem, solve
from hilore_planner.solvers.fold import fold
from hilore_planner.solvers.linear import LinearModel, solve_linear
from hilore_planner.solvers.search import LeastTime, Limits, search, start_refinement
from hilore_planner.solvers.structure import analyse
from tests.solvers.layered import GIB, Shape, transformer
from tests.solvers.oracle import truth
from tests.solvers.strategies import layered_problems, problems


@settings(max_examples=200)
@given(st.one_of(problems(), layered_problems()), st.integers(0, 2))
def test_it_is_below_the_oracle(problem: PlacementProblem, rounds: int) -> None:
    structure = analyse(problem)
    refinement = start_refinement(structure)
    goal = LeastTime(problem.memory_cap_bytes)
    if rounds:
        limits = Limits(0.0, math.inf)
        search(goal, structure, refinement, limits, rounds=rounds + 1)
    program = goal.program(structure, refinement)
    folded = solve_linear(fold(program.model, program.variables.labels()))
    best = truth(problem).least_time_ns
    if best is not None:
        assert folded.outcome == "optimal"
        assert folded.bound <= best + 1e-6


def test_columns_that_can_change_places_become_one_count() -> None:
    # Ten columns of cost 1, of which the shared row wants 2.5 in all: 2.5 relaxed, 3 in counts.
    model = LinearModel()
    columns = [model.column(f"x[{i}]", cost=1.0) for i in range(10)]
    model.row("peak[0]", [(column, 1.0) for column in columns], lower=2.5)
    folded = fold(model, dict.fromkeys(columns, "x"))
    assert len(folded.column_names) == 1
    assert abs(solve_linear(model, relaxed=True).objective - 2.5) < 1e-6
    assert abs(solve_linear(folded).objective - 3.0) < 1e-6


def test_labels_and_costs_keep_columns_apart() -> None:
    model = LinearModel()
    for i in range(4):
        model.column(f"x[{i}]", cost=1.0 + i % 2)
    assert len(fold(model, {}).column_names) == 2
    assert len(fold(model, {0: "a"}).column_names) == 3


def test_lossy_copies_over_equal_layers_are_solved_to_the_gap() -> None:
    problem = transformer(
        Shape(layers=8), cap_bytes=35 * GIB // 2, codecs=True, gradient_error=6.5e-5**0.5
    )
    found = solve(problem, time_limit_seconds=600.0)
    assert found.status == "optimal"
    assert 0.0 < found.risk <= 6.5e-5
