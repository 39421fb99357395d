from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import replay
from tests.command_line import Run, runner
from tests.golden_text import Golden
from tests.plan_cases import MIB, toy_plan

GIB = 2**30


@pytest.fixture
def hilore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    # Layers 0-2 and 4-7 are alike, layer 3 keeps gate_proj as it is.
    toy_plan(layers=8, actions={"layers.3.mlp.gate_proj": "store"}).save(path)
    return path


def test_show(hilore: Run, plan: Path, golden: Golden) -> None:
    result = hilore("show", plan)
    assert (result.code, result.err) == (0, "")
    golden.check("show.txt", result.out)


def test_show_as_json(hilore: Run, plan: Path) -> None:
    record = json.loads(hilore("show", plan, "--json").out)
    loaded = PlacementPlan.load(plan)
    assert record["memory_cap_bytes"] == GIB
    assert record["predicted_peak_bytes"] == loaded.solution.peak_bytes
    assert record["saved_bytes"] == sum(unit["kept_bytes"] for unit in record["units"])
    assert record["measured_peak_bytes"] is None
    assert {unit["unit"]: unit["action"] for unit in record["units"]} == loaded.solution.placement
    assert record["units"][3] == {
        "unit": "layers.0.mlp.gate_proj",
        "action": "compress:int8",
        "bytes": 48 * MIB,
        "kept_bytes": 24 * MIB,
        "layer": 0,
        "module": "model.layers.0.mlp.gate_proj",
        "role": "mlp.gate_proj",
        "op": "mm",
        "source": "model.py:120",
        "shape": [4, 1024, 6144],
        "dtype": "torch.bfloat16",
        "forced": "",
    }


@pytest.mark.parametrize("command", ["show", "solve", "explain"])
def test_every_figure_has_its_name_in_json(command: str, hilore: Run, plan: Path) -> None:
    record = json.loads(hilore(command, plan, "--json").out)
    assert record.keys() >= {
        *("status", "memory_cap_bytes", "saved_bytes", "predicted_peak_bytes"),
        *("measured_peak_bytes", "predicted_time_ns", "measured_time_ns"),
        *("predicted_gradient_error", "measured_gradient_error", "objective_ns", "bound_ns"),
        *("gap", "solver_seconds", "smallest_feasible_cap_bytes"),
    }


def test_explain(hilore: Run, plan: Path, golden: Golden) -> None:
    result = hilore("explain", plan)
    assert (result.code, result.err) == (0, "")
    golden.check("explain.txt", result.out)


def test_diff(hilore: Run, plan: Path, tmp_path: Path, golden: Golden) -> None:
    other = tmp_path / "other.json"
    recomputed = {f"layers.{layer}.attn.q_proj": "recompute" for layer in range(8)}
    toy_plan(layers=8, actions=recomputed).save(other)
    result = hilore("diff", plan, other)
    assert (result.code, result.err) == (0, "")
    golden.check("diff.txt", result.out)
    record = json.loads(hilore("diff", plan, other, "--json").out)
    assert [change["unit"] for change in record["units"]][:2] == [
        "layers.0.attn.q_proj",
        "layers.1.attn.q_proj",
    ]
    assert len(record["units"]) == 9
    assert record["units"][0]["after_kept_bytes"] == 0


def test_diff_of_the_same(hilore: Run, plan: Path) -> None:
    assert "every unit has the same action" in hilore("diff", plan, plan).out


def test_solve_writes_a_plan_for_the_new_cap(hilore: Run, plan: Path, tmp_path: Path) -> None:
    output = tmp_path / "tight.json"
    arguments = ("--memory-cap", "400MiB", "--gradient-error", "0", "-o", output)
    result = hilore("solve", plan, *arguments)
    assert (result.code, result.err) == (0, "")
    assert "cap             400.0 MiB" in result.out
    solved = PlacementPlan.load(output)
    assert solved.problem.memory_cap_bytes == 400 * MIB
    assert solved.problem.gradient_error == 0
    assert solved.provenance.options["memory_cap"] == "400MiB"
    found = replay(solved.problem, solved.solution.placement)
    assert found.peak_bytes <= 400 * MIB
    assert found.risk == 0
    # What the old placement took is replaced by what the new one takes: 42 ms in all before.
    old = PlacementPlan.load(plan)
    assert solved.predicted.time_ns is not None
    assert solved.predicted.time_ns - found.time_ns == 42_000_000 - old.solution.objective_ns


def test_solve_without_output_shows_the_plan(hilore: Run, plan: Path) -> None:
    out = hilore("solve", plan, "--memory-cap", "2GiB").out
    assert "layers 0-7 (x8)" in out


def test_a_cap_that_nothing_fits_says_the_smallest_that_does(hilore: Run, plan: Path) -> None:
    result = hilore("solve", plan, "--memory-cap", "100MiB")
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("hilore: nothing fits memory_cap 100.0 MiB in 'update': ")
    smallest = result.err.split("the smallest feasible one is ")[1].split()[0]
    assert hilore("solve", plan, "--memory-cap", smallest).code == 0
    assert hilore("solve", plan, "--memory-cap", int(smallest) - 1).code == 1


def test_the_file_of_a_cap_that_nothing_fits_leads_to_the_smallest_that_does(
    hilore: Run, plan: Path, tmp_path: Path
) -> None:
    refused = tmp_path / "refused.json"
    result = hilore("solve", plan, "--memory-cap", "100MiB", "-o", refused)
    assert result.code == 1
    smallest = result.err.split("the smallest feasible one is ")[1].split()[0]
    quick = ("--memory-cap", smallest, "--solver-seconds", 0.001)
    assert hilore("solve", refused, *quick).code == 0


def test_sweep_never_costs_time_for_more_memory(hilore: Run, plan: Path) -> None:
    arguments = ("sweep", plan, "--caps", "100MiB:1100MiB:200MiB")
    text = hilore(*arguments).out
    assert text.splitlines()[1].split()[:3] == ["100.0", "MiB", "infeasible"]
    assert "smallest cap that something fits: " in text
    rows = json.loads(hilore(*arguments, "--json").out)["rows"]
    assert [row["memory_cap_bytes"] for row in rows] == [
        cap * MIB for cap in (100, 300, 500, 700, 900, 1100)
    ]
    assert rows[0]["status"] == "infeasible"
    assert rows[0]["smallest_feasible_cap_bytes"] > 100 * MIB
    solved = [row for row in rows if row["status"] != "infeasible"]
    assert len(solved) >= 4
    times = [row["objective_ns"] for row in solved]
    assert times == sorted(times, reverse=True)
    assert all(row["predicted_peak_bytes"] <= row["memory_cap_bytes"] for row in solved)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "none.json"), "hilore: cannot read plan none.json: No such file or directory\n"),
        (("solve", "PLAN", "--memory-cap", "lots"), "hilore: memory_cap is 'lots'; accepted: "),
        (("solve", "PLAN", "--memory-cap", "80%"), "hilore: memory_cap is '80%', a share of a "),
        (("solve", "PLAN", "--gradient-error", "2"), "hilore: option gradient_error is 2.0; acc"),
        (("solve", "PLAN", "-o", "none/x.json"), "hilore: cannot write plan none/x.json: No such"),
        (("sweep", "PLAN", "--caps", "1GiB:2GiB"), "hilore: --caps is '1GiB:2GiB'; accepted: FIR"),
    ],
)
def test_an_error_is_one_line(
    arguments: tuple[str, ...], says: str, hilore: Run, plan: Path
) -> None:
    result = hilore(*(plan if argument == "PLAN" else argument for argument in arguments))
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith(says)
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("shwo",), ("show",), ("show", "--jsn", "x"), ("sweep", "plan.json")]
)
def test_misuse_is_2(arguments: tuple[str, ...], hilore: Run) -> None:
    result = hilore(*arguments)
    assert result.code == 2
    assert "Error: " in result.err


def test_no_command_needs_torch(plan: Path, tmp_path: Path) -> None:
    script = """
import sys
from hilore_planner.cli import main
for arguments in (["show", P], ["explain", P], ["diff", P, P], ["solve", P, "-o", O],
                  ["sweep", P, "--caps", "600MiB,1GiB"], ["show", O, "--json"]):
    sys.argv = ["hilore", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, (arguments, stop.code)
    assert "torch" not in sys.modules, arguments
"""
    names = f"P, O = {str(plan)!r}, {str(tmp_path / 'o.json')!r}\n"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", names + script], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
