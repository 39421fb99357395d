from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hilore_planner.errors import PlanFileError
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers.problem import Unit
from tests.plan_cases import MIB, toy_plan


def _with_unit(plan: PlacementPlan, index: int, **changes: Any) -> PlacementPlan:
    units = list(plan.problem.units)
    units[index] = replace(units[index], **changes)
    return replace(plan, problem=replace(plan.problem, units=tuple(units)))


def _with_solution(plan: PlacementPlan, **changes: Any) -> PlacementPlan:
    return replace(plan, solution=replace(plan.solution, **changes))


def _refusal(plan: PlacementPlan, tmp_path: Path) -> str:
    with pytest.raises(PlanFileError) as error:
        plan.save(tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()
    return str(error.value)


# Unit 3 of the toy plan is layers.0.mlp.gate_proj; 21 forward positions, 42 in all.
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "layers.0.norm"}, "unit 'layers.0.norm' is listed twice"),
        ({"parents": ("layers.9.norm",)}, "parent 'layers.9.norm' is not listed before it"),
        ({"parents": ("layers.0.mlp.act",)}, "parent 'layers.0.mlp.act' is not listed before it"),
        ({"made_at": 21, "released_at": 21}, "made_at is 21; accepted: 0 to 20"),
        ({"made_at": -1}, "made_at is -1; accepted: 0 to 20"),
        ({"made_at": 5}, "released_at is 3; accepted: 4 (made_at - 1) to 20"),
        ({"released_at": 21}, "released_at is 21; accepted: 2 (made_at - 1) to 20"),
        ({"read_at": (38, 30)}, "read_at is [38, 30]; accepted: ascending"),
        ({"read_at": (42,)}, "read_at holds 42; accepted: 21 to 41"),
        ({"read_at": (20,)}, "read_at holds 20; accepted: 21 to 41"),
        ({"kept_bytes": -1}, "kept_bytes is -1; accepted: 0 or above"),
        ({"recompute_ns": -5}, "recompute_ns is -5; accepted: 0 or above"),
        ({"inexact_risk": float("nan")}, "inexact_risk is nan; accepted: 0 or above"),
        ({"finer_inexact_risks": ()}, "finer_inexact_risks has 0 entries; accepted: one for each"),
        ({"finer_inexact_risks": (1.0,)}, "are [1.0, 1e-07]; accepted: 0 or above, ascending"),
    ],
)
def test_a_wrong_unit_is_named(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    refusal = _refusal(_with_unit(toy_plan(), 3, **changes), tmp_path)
    assert says in refusal
    assert "unit 'layers.0" in refusal


def test_codecs_are_checked(tmp_path: Path) -> None:
    unit: Unit = toy_plan().problem.units[3]
    twice = _with_unit(toy_plan(), 3, codecs=(unit.codecs[0], unit.codecs[0]))
    assert "a codec is offered twice: int8, int8" in _refusal(twice, tmp_path)
    risky = _with_unit(toy_plan(), 3, codecs=(replace(unit.codecs[0], risk=float("inf")),))
    assert "codec 'int8': risk is inf; accepted: 0 or above" in _refusal(risky, tmp_path)
    strange = _with_unit(toy_plan(), 3, codecs=(replace(unit.codecs[0], codec="int3"),))
    assert "codec 'int3' loses something; accepted: such as are in" in _refusal(strange, tmp_path)


def test_a_wrong_problem_is_refused(tmp_path: Path) -> None:
    plan = toy_plan()
    for changes, says in (
        ({"first_backward": 43}, "first_backward is 43; accepted: 0 to 42"),
        ({"memory_cap_bytes": 0}, "memory_cap_bytes is 0; accepted: above 0"),
        ({"gradient_error": -1.0}, "gradient_error is -1.0; accepted: 0 or above"),
        ({"ladder": ("int8", "int8")}, "ladder is ['int8', 'int8']; accepted: no codec twice"),
    ):
        wrong = replace(plan, problem=replace(plan.problem, **changes))
        assert says in _refusal(wrong, tmp_path)
    positions = list(plan.problem.positions)
    positions[7] = replace(positions[7], fixed_bytes=-1)
    wrong = replace(plan, problem=replace(plan.problem, positions=tuple(positions)))
    assert "position 7 (forward.7): fixed_bytes is -1" in _refusal(wrong, tmp_path)


def test_units_and_sources_must_match(tmp_path: Path) -> None:
    plan = toy_plan()
    sources = dict(plan.sources)
    sources["stranger"] = sources.pop("lm_head")
    refusal = _refusal(replace(plan, sources=sources), tmp_path)
    assert "'lm_head' is in one of" in refusal or "'stranger' is in one of" in refusal


@pytest.mark.parametrize(
    ("unit", "action", "says"),
    [
        ("stranger", "store", "unit 'stranger': no such unit"),
        ("layers.1.norm", "compress:int8", "'compress:int8' is not open to it"),
        ("layers.1.norm", "stash", "'stash' is not open to it"),
        ("layers.1.attn.sdpa", "recompute", "'recompute' is not open to it"),
    ],
)
def test_a_wrong_action_is_refused(unit: str, action: str, says: str, tmp_path: Path) -> None:
    plan = toy_plan()
    placement = plan.solution.placement | {unit: action}
    refusal = _refusal(_with_solution(plan, placement=placement), tmp_path)
    assert f"unit {unit!r}" in refusal
    assert says in refusal


def test_a_missing_action_is_refused(tmp_path: Path) -> None:
    plan = toy_plan()
    placement = dict(plan.solution.placement)
    del placement["layers.1.norm"]
    refusal = _refusal(_with_solution(plan, placement=placement), tmp_path)
    assert "unit 'layers.1.norm': not at hand" in refusal


@pytest.mark.parametrize("field", ["peak_bytes", "peak_position", "saved_bytes", "objective_ns"])
def test_what_the_solution_says_is_replayed(field: str, tmp_path: Path) -> None:
    plan = toy_plan()
    stated = getattr(plan.solution, field)
    refusal = _refusal(_with_solution(plan, **{field: stated + 1}), tmp_path)
    assert f"says {field} is {stated + 1}, but its placement gives {stated}" in refusal


def test_the_risk_is_replayed(tmp_path: Path) -> None:
    refusal = _refusal(_with_solution(toy_plan(), risk=1.0), tmp_path)
    assert "says risk is 1.0, but its placement gives" in refusal


def test_a_placement_above_the_cap_names_its_largest_owner(tmp_path: Path) -> None:
    # 120 MiB are fixed in backward, and more than 8 MiB are kept besides.
    refusal = _refusal(toy_plan(memory_cap_bytes=128 * MIB), tmp_path)
    assert "(most of them for unit " in refusal
    assert f"the cap is {128 * MIB}" in refusal


def test_a_placement_above_the_error_is_refused(tmp_path: Path) -> None:
    plan = toy_plan()
    exact = replace(plan, problem=replace(plan.problem, gradient_error=0.0))
    assert "above the square of gradient_error 0.0" in _refusal(exact, tmp_path)


def test_an_action_edited_by_hand_is_refused_on_load(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    toy_plan().save(path)
    raw = json.loads(path.read_text())
    raw["solution"]["placement"]["layers.2.attn.sdpa"] = "recompute"
    path.write_text(json.dumps(raw))
    with pytest.raises(PlanFileError, match=r"plan .*plan.json: placement of unit 'layers.2.attn"):
        PlacementPlan.load(path)


def test_an_infeasible_plan_has_no_placement(tmp_path: Path) -> None:
    infeasible = _with_solution(toy_plan(), status="infeasible")
    assert "status is infeasible, but there is a placement" in _refusal(infeasible, tmp_path)
    empty = _with_solution(infeasible, placement={}, smallest_feasible_cap_bytes=2**30)
    empty.save(tmp_path / "plan.json")
    assert PlacementPlan.load(tmp_path / "plan.json") == empty
