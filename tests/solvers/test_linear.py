"""The way to HiGHS: what it refuses is said."""

from __future__ import annotations

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
