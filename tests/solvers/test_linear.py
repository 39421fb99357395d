"""The way to HiGHS: what it refuses is said."""

from __future__ import annotations

import os
from typing import Any

import pytest
from ortools.math_opt.python import mathopt

from hilore_planner.errors import SolverError
from hilore_planner.solvers.linear import LinearModel, solve_linear


def test_a_program_that_highs_refuses_is_described() -> None:
    model = LinearModel()
    column = model.column("x", cost=1.0)
    model.row("r", [(column, 1e30)], lower=1.0)
    says = r"1 columns and 1 rows, whose coefficients go from 1e\+30 to 1e\+30: "
    with pytest.raises(SolverError, match=says):
        solve_linear(model)


def test_what_highs_prints_is_dropped_and_what_others_print_is_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def chatty(*_: object, **__: object) -> object:
        os.write(1, b"HighsMipSolverData::somewhere tmpSolver.run();\nby another thread\n")
        raise ValueError("and that is that")

    monkeypatch.setattr("hilore_planner.solvers.linear.mathopt.solve", chatty)
    with pytest.raises(SolverError, match="and that is that"):
        solve_linear(LinearModel())
    assert capfd.readouterr().out == "by another thread\n"


def test_near_a_relaxation_whole_binaries_stay_and_counts_move_by_one() -> None:
    model = LinearModel()
    for upper in (1.0, 1.0, 9.0, 9.0):
        model.column("", upper=upper)
    model.column("", upper=1.0, integer=False)
    near = model.near([1.0, 0.4, 3.0, 8.5, 0.5])
    assert near.column_lower == [1.0, 0.0, 2.0, 7.0, 0.0]
    assert near.column_upper == [1.0, 1.0, 4.0, 9.0, 1.0]
    assert model.column_upper == [1.0, 1.0, 9.0, 9.0, 1.0]


def test_a_hint_that_highs_fails_to_complete_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LinearModel()
    x = model.column("x", cost=1.0, upper=1.0, integer=True)
    y = model.column("y", cost=2.0, upper=1.0, integer=True)
    model.row("one", [(x, 1.0), (y, 1.0)], lower=1.0)
    whole, hinted = mathopt.solve, []

    def solve(*arguments: Any, **keywords: Any) -> mathopt.SolveResult:
        parameters = keywords.get("model_params")
        hinted.append(bool(parameters is not None and parameters.solution_hints))
        if hinted[-1]:
            raise RuntimeError("kError")
        return whole(*arguments, **keywords)

    monkeypatch.setattr(mathopt, "solve", solve)
    found = solve_linear(model, hint={y: 1.0})
    assert found.outcome == "optimal"
    assert found.objective == 1.0
    assert hinted == [True, False]
