from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hilore_planner.errors import InfeasibleError, OptionError, PlanFileError, SolverLimitError
from hilore_planner.margins import MARGIN, margin_bytes
from hilore_planner.plan import Figures, FixedPart, PlacementPlan
from hilore_planner.solvers import replay
from tests.plan_cases import MIB, toy_plan


def _holds(plan: PlacementPlan) -> None:
    found = replay(plan.problem, plan.solution.placement)
    assert found.peak_bytes == plan.solution.peak_bytes <= plan.problem.memory_cap_bytes
    assert found.risk <= plan.problem.gradient_error**2


def test_solves_for_another_cap() -> None:
    plan = toy_plan(layers=8).solve(memory_cap="500MiB")
    assert plan.problem.memory_cap_bytes == 500 * MIB
    assert plan.solution.status == "optimal"
    assert plan.measured == Figures()
    _holds(plan)


def test_a_tighter_error_is_kept_from_a_plan_that_exceeds_it() -> None:
    loose = toy_plan(layers=8).solve(memory_cap="700MiB", gradient_error=0.02)
    assert loose.predicted_gradient_error > 0.001
    _holds(loose.solve(gradient_error=0.001))


def test_what_is_not_given_stays() -> None:
    plan = toy_plan(layers=8).solve(memory_cap=700 * MIB)
    again = plan.solve()
    assert again.problem == plan.problem
    assert again.solution.objective_ns <= plan.solution.objective_ns


def test_a_cap_too_small_carries_the_smallest() -> None:
    plan = toy_plan(layers=8)
    with pytest.raises(InfeasibleError, match="nothing fits memory_cap") as error:
        plan.solve(memory_cap="10MiB")
    smallest = error.value.smallest_feasible_cap_bytes
    assert smallest is not None
    _holds(plan.solve(memory_cap=smallest, warm_start=error.value.witness, solver_seconds=1e-3))
    with pytest.raises(InfeasibleError):
        plan.solve(memory_cap=smallest - 1, solver_seconds=600.0)


def test_a_plan_that_nothing_fits_is_solved_for_the_smallest_cap_without_time(
    tmp_path: Path,
) -> None:
    refused = toy_plan(layers=8).solve(memory_cap="10MiB", must_fit=False)
    assert refused.solution.status == "infeasible"
    refused.save(tmp_path / "refused.json")
    loaded = PlacementPlan.load(tmp_path / "refused.json")
    smallest = loaded.solution.smallest_feasible_cap_bytes
    _holds(loaded.solve(memory_cap=smallest, solver_seconds=1e-3))


def test_a_witness_of_another_peak_is_refused(tmp_path: Path) -> None:
    refused = toy_plan(layers=8).solve(memory_cap="10MiB", must_fit=False)
    wrong = replace(refused.solution, smallest_feasible_cap_bytes=MIB)
    with pytest.raises(PlanFileError, match="its witness gives"):
        replace(refused, solution=wrong).save(tmp_path / "refused.json")


def test_what_is_neither_found_nor_ruled_out_is_not_called_infeasible() -> None:
    refused = toy_plan(layers=8).solve(memory_cap="10MiB", must_fit=False)
    undecided = replace(refused, solution=replace(refused.solution, status="undecided"))
    with pytest.raises(SolverLimitError, match=r"nothing was found that fits.*solver_seconds") as e:
        undecided.require_feasible()
    assert str(e.value.smallest_feasible_cap_bytes) in str(e.value)
    assert e.value.witness == refused.solution.witness


def test_sweep_keeps_the_order_of_its_caps_and_never_slows_with_memory() -> None:
    caps = [900 * MIB, 10 * MIB, 500 * MIB, 900 * MIB, 700 * MIB]
    plans = toy_plan(layers=8).sweep(caps)
    assert [plan.problem.memory_cap_bytes for plan in plans] == caps
    assert plans[1].solution.status == "infeasible"
    for plan in (plans[0], *plans[2:]):
        _holds(plan)
    times = [plans[index].solution.objective_ns for index in (2, 4, 0)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(("memory_cap", "gradient_error"), [("half", None), (None, -1.0)])
def test_unreadable_wishes_are_refused(
    memory_cap: str | None, gradient_error: float | None
) -> None:
    with pytest.raises(OptionError, match="accepted"):
        toy_plan().solve(memory_cap=memory_cap, gradient_error=gradient_error)


def test_an_error_that_no_unit_could_use_is_refused() -> None:
    plan = toy_plan(actions={f"layers.{layer}.mlp.gate_proj": "store" for layer in range(4)})
    units = tuple(replace(unit, codecs=()) for unit in plan.problem.units)
    plain = replace(plan, problem=replace(plan.problem, units=units))
    with pytest.raises(OptionError, match=r"gradient_error is 0.01, but no unit of this plan"):
        plain.solve(gradient_error=0.01)
    assert plain.solve(gradient_error=0.0).problem.gradient_error == 0


def _roomy(layers: int, cap_bytes: int) -> PlacementPlan:
    """A plan with the margin for its cap, and nothing held outside."""
    plan = toy_plan(layers=layers)
    size_bytes = margin_bytes(cap_bytes)
    positions = tuple(
        replace(position, fixed_bytes=position.fixed_bytes + size_bytes)
        for position in plan.problem.positions
    )
    problem = replace(plan.problem, positions=positions, memory_cap_bytes=cap_bytes)
    part = FixedPart(MARGIN, size_bytes, 0, len(positions) - 1)
    return replace(plan, problem=problem, fixed_parts=(part,)).solve()


def test_what_is_left_free_follows_the_cap() -> None:
    """A plan with all the memory it likes leaves a share of that free; under another cap, a share of the other."""
    roomy = _roomy(8, 2**36)
    peak_bytes = roomy.predicted_peak_bytes
    for cap_bytes in (peak_bytes * 3 // 4, peak_bytes, 2 * peak_bytes):
        (swept,) = roomy.sweep([cap_bytes])
        for found in (roomy.solve(memory_cap=cap_bytes), swept):
            (part,) = found.fixed_parts
            assert part.size_bytes == margin_bytes(max(cap_bytes, peak_bytes))
            assert found.problem.memory_cap_bytes == cap_bytes
            _holds(found)
        back = found.solve(memory_cap=2**36)
        assert back.problem == roomy.problem


def test_the_smallest_cap_is_the_same_whichever_was_asked_for() -> None:
    roomy, smallest = _roomy(8, 2**36), set()
    for cap_bytes in (1, 10 * MIB):
        with pytest.raises(InfeasibleError) as error:
            roomy.solve(memory_cap=cap_bytes)
        found = error.value.smallest_feasible_cap_bytes
        assert found is not None
        smallest.add(found)
        fitting = roomy.solve(memory_cap=found, warm_start=error.value.witness)
        _holds(fitting)
        refused = roomy.solve(memory_cap=cap_bytes, must_fit=False)
        _holds(refused.solve(memory_cap=found, solver_seconds=1e-3))
    assert len(smallest) == 1
