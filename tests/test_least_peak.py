"""The least peak is found however far off the solver's own search for it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from hilore_planner import least_peak as searched
from hilore_planner.least_peak import least_peak
from hilore_planner.solvers import PlacementProblem, Solution, replay, solve
from tests.solvers.oracle import truth
from tests.solvers.strategies import problems

SECONDS = 10.0


@settings(max_examples=25)
@given(problem=problems(most_units=5))
def test_it_is_the_least_there_is(problem: PlacementProblem) -> None:
    at_least, solution = least_peak(problem, SECONDS)
    least_bytes = truth(problem).least_peak_bytes
    assert solution.is_placed == (least_bytes is not None)
    if least_bytes is not None:
        assert at_least.memory_cap_bytes == least_bytes
        assert replay(at_least, solution.placement).peak_bytes == least_bytes


@settings(max_examples=15)
@given(problem=problems(most_units=5))
def test_a_search_that_ends_early_is_taken_further(problem: PlacementProblem) -> None:
    def ends_early(asked: PlacementProblem, **keywords: Any) -> Solution:
        """The peak of the fastest placement where the least is asked for."""
        if asked.memory_cap_bytes > 1:
            return solve(asked, **keywords)
        roomy = solve(replace(asked, memory_cap_bytes=2**30))
        first = solve(asked, **keywords)
        if not roomy.is_placed:
            return first
        return replace(first, smallest_feasible_cap_bytes=roomy.peak_bytes, witness=roomy.placement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searched, "solve", ends_early)
        at_least, solution = least_peak(problem, SECONDS)
    if solution.is_placed:
        assert at_least.memory_cap_bytes == truth(problem).least_peak_bytes
