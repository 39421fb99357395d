"""What the solver bench records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hilore_planner.bench.command import app
from hilore_planner.bench.solver import measure, plan_of
from hilore_planner.errors import OptionError
from hilore_planner.solvers import solve
from tests.plan_cases import toy_plan, toy_problem


def test_a_row_says_what_was_solved_and_how_well() -> None:
    problem = replace(toy_problem(), gradient_error=0.02)
    row = measure(problem, caps=4, relative_gap=1e-3)
    assert (row["layers"], row["units"], row["forms"]) == (4, 21, 2)
    assert (row["caps"], row["sweep_status"]) == (4, {"optimal": 4})
    assert row["status"] == {"optimal": 9}
    assert row["gap"] <= 1e-3
    nothing = solve(replace(problem, memory_cap_bytes=1))
    assert row["smallest_feasible_cap_bytes"] == nothing.smallest_feasible_cap_bytes
    for name in ("floor", "first_solve", "re_solve", "sweep"):
        assert 0.0 < row[f"{name}_seconds"] <= row[f"{name}_seconds_max"]


def test_what_fits_no_cap_is_refused() -> None:
    problem = toy_problem()
    stuck = replace(problem.units[0], can_store=False, can_recompute=False, codecs=())
    with pytest.raises(OptionError, match="under any memory cap"):
        measure(replace(problem, units=(stuck, *problem.units[1:])), caps=2, relative_gap=1e-3)


def test_plan_files_that_are_there_are_used(tmp_path: Path) -> None:
    toy_plan().save(tmp_path / "toy.json")
    output = tmp_path / "solver.json"
    arguments = ["solver", "--model", "toy", "--plans", str(tmp_path), "--caps", "3"]
    result = CliRunner().invoke(app, [*arguments, "-o", str(output)])
    assert result.exit_code == 0, result.output
    rows = json.loads(output.read_text())["rows"]
    assert [(row["setting"], row["variant"]) for row in rows] == [
        ("toy", "exact"),
        ("toy", "compressed"),
    ]
    assert "toy, exact: 4 layers, 21 units; first solve" in result.output


@pytest.mark.parametrize("name", ["qwen9", "qwen9+lora8", "qwen2.5-0.5b+loramany"])
def test_an_unknown_model_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"qwen9|'many'"):
        plan_of(name, tmp_path)
    assert not list(tmp_path.iterdir())
