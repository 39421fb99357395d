"""The way to HiGHS: what it refuses is said."""

from __future__ import annotations

import os

import pytest

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
