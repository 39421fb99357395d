"""The integer program against every placement, replayed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

from hypothesis import given, settings

from hilore_planner.solvers import PlacementProblem, replay, solve
from tests.solvers.oracle import truth
from tests.solvers.strategies import problems


@settings(max_examples=400)
@given(problems())
def test_matches_the_oracle(problem: PlacementProblem) -> None:
    best = truth(problem)
    found = solve(problem, relative_gap=0.0)
    if best.least_time_ns is None:
        assert found.status == "infeasible"
        assert found.smallest_feasible_cap_bytes == best.least_peak_bytes
        return
    assert found.status == "optimal"
    assert found.objective_ns == found.bound_ns == best.least_time_ns
    checked = replay(problem, found.placement)
    assert checked.peak_bytes == found.peak_bytes <= problem.memory_cap_bytes
    assert checked.time_ns == found.objective_ns
    assert checked.risk <= problem.gradient_error**2


@given(problems())
def test_the_smallest_feasible_cap_is_feasible(problem: PlacementProblem) -> None:
    refused = solve(dataclasses.replace(problem, memory_cap_bytes=0))
    least = refused.smallest_feasible_cap_bytes
    if least is not None:
        found = solve(dataclasses.replace(problem, memory_cap_bytes=least))
        assert found.status == "optimal"
        assert found.peak_bytes == least


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
    one = solve(problem, relative_gap=0.0)
    other = solve(dataclasses.replace(problem, units=units), relative_gap=0.0)
    assert (one.status, one.objective_ns) == (other.status, other.objective_ns)
    assert one.smallest_feasible_cap_bytes == other.smallest_feasible_cap_bytes


def test_importing_the_solvers_loads_no_torch() -> None:
    code = (
        "import sys, hilore_planner.solvers, hilore_planner.plan; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
