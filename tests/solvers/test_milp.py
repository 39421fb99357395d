"""The integer program against every placement, replayed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.errors import OptionError, PlacementError
from hilore_planner.solvers import PlacementProblem, Position, Solution, Unit, replay, solve
from tests.solvers.layered import GIB, Shape, transformer
from tests.solvers.oracle import truth
from tests.solvers.strategies import interior_problems, layered_problems, problems

AMPLE = 600.0
"""Seconds that no solve here comes near, on whatever machine: where the answer matters, not the time."""

ANY_PROBLEM = st.one_of(problems(), layered_problems(), interior_problems())


def check_fits(problem: PlacementProblem, found: Solution) -> None:
    """The solution's figures are its replay's, under the cap and in the budget."""
    checked = replay(problem, found.placement)
    assert checked.peak_bytes == found.peak_bytes <= problem.memory_cap_bytes
    assert checked.peak_position == found.peak_position
    assert checked.saved_bytes == found.saved_bytes
    assert checked.time_ns == found.objective_ns >= found.bound_ns
    assert checked.risk <= problem.gradient_error**2


@settings(max_examples=150)
@given(ANY_PROBLEM)
def test_matches_the_oracle(problem: PlacementProblem) -> None:
    best = truth(problem)
    found = solve(problem, relative_gap=0.0, time_limit_seconds=AMPLE)
    if best.least_time_ns is None:
        assert found.status == "infeasible"
        assert found.placement == {}
        assert found.smallest_feasible_cap_bytes == best.least_peak_bytes
        return
    assert found.status == "optimal"
    assert found.objective_ns == found.bound_ns == best.least_time_ns
    check_fits(problem, found)


@settings(max_examples=100)
@given(ANY_PROBLEM)
def test_lp_repair_is_feasible_and_never_below_the_oracle(problem: PlacementProblem) -> None:
    best = truth(problem)
    found = solve(problem, engine="lp-repair", time_limit_seconds=AMPLE)
    if best.least_time_ns is None:
        assert found.status == "infeasible"
        return
    check_fits(problem, found)
    assert found.bound_ns <= best.least_time_ns <= found.objective_ns


@given(ANY_PROBLEM)
def test_the_smallest_feasible_cap_is_feasible(problem: PlacementProblem) -> None:
    refused = solve(dataclasses.replace(problem, memory_cap_bytes=0), time_limit_seconds=AMPLE)
    least = refused.smallest_feasible_cap_bytes
    if least is not None:
        found = solve(
            dataclasses.replace(problem, memory_cap_bytes=least), time_limit_seconds=AMPLE
        )
        assert found.status == "optimal"
        assert found.peak_bytes == least
        assert set(refused.holding) <= {unit.name for unit in problem.units}


@given(problems())
def test_renaming_units_changes_nothing(problem: PlacementProblem) -> None:
    def renamed(name: str) -> str:
        return f"z{9 - int(name[1:])}"

    units = tuple(
        dataclasses.replace(
            unit, name=renamed(unit.name), parents=tuple(map(renamed, unit.parents))
        )
        for unit in problem.units
    )
    one = solve(problem, relative_gap=0.0, time_limit_seconds=AMPLE)
    other = solve(
        dataclasses.replace(problem, units=units), relative_gap=0.0, time_limit_seconds=AMPLE
    )
    assert (one.status, one.objective_ns) == (other.status, other.objective_ns)
    assert one.smallest_feasible_cap_bytes == other.smallest_feasible_cap_bytes


@given(ANY_PROBLEM)
def test_a_warm_start_changes_no_objective(problem: PlacementProblem) -> None:
    found = solve(problem, relative_gap=0.0, time_limit_seconds=AMPLE)
    if found.status == "optimal":
        again = solve(
            problem, relative_gap=0.0, warm_start=found.placement, time_limit_seconds=AMPLE
        )
        assert again.objective_ns == found.objective_ns
        tighter = dataclasses.replace(problem, memory_cap_bytes=found.peak_bytes - 1)
        over = solve(
            tighter, relative_gap=0.0, warm_start=found.placement, time_limit_seconds=AMPLE
        )
        assert over.status == "infeasible" or over.objective_ns >= found.objective_ns


def test_no_error_allowed_means_lossless_forms_only() -> None:
    problem = transformer(Shape(layers=2), cap_bytes=29 * GIB // 2, codecs=True)
    found = solve(problem, time_limit_seconds=AMPLE)
    assert found.status == "optimal"
    assert found.risk == 0.0
    assert not any(action.startswith("compress") for action in found.placement.values())
    # A budget for three of int8's 1e-5.
    allowed = solve(
        dataclasses.replace(problem, gradient_error=3.5e-5**0.5), time_limit_seconds=AMPLE
    )
    assert 0.0 < allowed.risk <= 3.5e-5
    assert allowed.objective_ns < found.objective_ns


def test_layers_are_solved_to_the_gap() -> None:
    problem = transformer(Shape(layers=6), cap_bytes=17 * GIB)
    found = solve(problem, time_limit_seconds=AMPLE)
    assert found.status == "optimal"
    assert found.gap <= 1e-3
    assert found.bound_ns > 0
    check_fits(problem, found)


def test_the_smallest_cap_found_for_layers_can_be_kept() -> None:
    # Logits of few tokens at once, so that the layers themselves are the peak.
    problem = transformer(Shape(layers=3, head_tokens=512), cap_bytes=0)
    refused = solve(problem, relative_gap=0.02, time_limit_seconds=2.0)
    assert refused.status == "infeasible"
    assert refused.holding
    assert replay(problem, refused.witness).peak_bytes == refused.smallest_feasible_cap_bytes
    capped = dataclasses.replace(
        problem, memory_cap_bytes=replay(problem, refused.witness).peak_bytes
    )
    found = solve(capped, warm_start=refused.witness, time_limit_seconds=0.0)
    assert found.is_placed
    check_fits(capped, found)


@given(layered_problems(), st.floats(0.0, 1.0))
def test_errors_allowed_raise_no_floor(problem: PlacementProblem, gradient_error: float) -> None:
    asked = dataclasses.replace(problem, memory_cap_bytes=-1)
    exact = solve(dataclasses.replace(asked, gradient_error=0.0), relative_gap=0.1)
    lossy = solve(dataclasses.replace(asked, gradient_error=gradient_error), relative_gap=0.1)
    if exact.smallest_feasible_cap_bytes is not None:
        assert lossy.smallest_feasible_cap_bytes is not None
        assert lossy.smallest_feasible_cap_bytes <= exact.smallest_feasible_cap_bytes


def test_a_unit_that_cannot_be_at_hand_is_infeasible_under_any_cap() -> None:
    stuck = Unit("a", 1, 1, 1, 0, (), 0, 0, (1,), can_store=False, can_recompute=False)
    problem = PlacementProblem((stuck,), (Position("f", 0), Position("b", 0)), 1, 10**9)
    found = solve(problem)
    assert found.status == "infeasible"
    assert found.smallest_feasible_cap_bytes is None
    assert found.holding == ("a",)


def test_nothing_to_decide() -> None:
    found = solve(PlacementProblem((), (Position("f", 3), Position("b", 5)), 1, 5))
    assert (found.status, found.objective_ns, found.peak_bytes) == ("optimal", 0, 5)
    refused = solve(PlacementProblem((), (Position("f", 3), Position("b", 5)), 1, 4))
    assert (refused.status, refused.smallest_feasible_cap_bytes) == ("infeasible", 5)


def test_without_time_the_relaxation_is_repaired() -> None:
    problem = transformer(Shape(layers=4), cap_bytes=16 * GIB)
    found = solve(problem, time_limit_seconds=0.0)
    assert found.status in ("feasible", "optimal")
    check_fits(problem, found)


def test_without_time_nothing_is_called_infeasible_unproven() -> None:
    problem = transformer(Shape(layers=4, head_tokens=512), cap_bytes=2 * GIB)
    found = solve(problem, time_limit_seconds=0.0)
    assert found.status == "undecided"
    assert found.placement == {}
    least = found.smallest_feasible_cap_bytes
    assert least is not None
    assert replay(problem, found.witness).peak_bytes == least > 2 * GIB
    capped = dataclasses.replace(problem, memory_cap_bytes=least)
    assert solve(capped, warm_start=found.witness, time_limit_seconds=0.0).is_placed


def test_unknown_engines_and_foreign_warm_starts_are_refused() -> None:
    problem = transformer(Shape(layers=1), cap_bytes=GIB)
    with pytest.raises(OptionError, match=r"simplex.*lp-repair"):
        solve(problem, engine="simplex")  # type: ignore[arg-type]
    with pytest.raises(PlacementError, match="no such unit"):
        solve(problem, warm_start={"elsewhere": "store"})


def test_importing_the_solvers_loads_no_torch() -> None:
    code = (
        "import sys, hilore_planner.solvers, hilore_planner.plan; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
