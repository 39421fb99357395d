"""The placement of the least peak that a few solutions lead to."""

from __future__ import annotations

from dataclasses import replace

from hilore_planner.solvers import solve
from hilore_planner.solvers.problem import PlacementProblem, Solution

_STEPS = (0.02, 0.005)
"""Shares by which the cap is lowered, again and again, as long as something fits."""
_SECONDS_SHARE = 0.2
"""Of the time a solution may take, for each cap on the way down."""
_ANY_GAP = 1.0
"""On the way down any placement that fits will do."""


def least_peak(
    problem: PlacementProblem, solver_seconds: float
) -> tuple[PlacementProblem, Solution]:
    """The problem with the lowest cap that was found to do, and its fastest placement; unplaced where none does.

    The solver's own search for the least peak ends when its time does. Whether something fits a given cap it finds much
    sooner, so lower and lower caps are asked for from there on.
    """
    first = solve(replace(problem, memory_cap_bytes=1), time_limit_seconds=solver_seconds)
    least_bytes, placement = first.smallest_feasible_cap_bytes, first.witness
    if least_bytes is None:
        return problem, first
    for share in _STEPS:
        found = first
        while found is first or found.is_placed:
            lower = replace(problem, memory_cap_bytes=round(least_bytes * (1 - share)))
            found = solve(
                lower,
                time_limit_seconds=_SECONDS_SHARE * solver_seconds,
                relative_gap=_ANY_GAP,
                warm_start=placement,
            )
            if found.is_placed:
                least_bytes, placement = found.peak_bytes, found.placement
    at_least = replace(problem, memory_cap_bytes=least_bytes)
    return at_least, solve(at_least, time_limit_seconds=solver_seconds, warm_start=placement)
