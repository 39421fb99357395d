"""The placement of the least peak that a few solutions lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hilore_planner.solvers import solve
from hilore_planner.solvers.problem import Bytes, PlacementProblem, Solution

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
    sooner, so lower and lower caps are asked for from there on. Where copies may be lossy, the search starts from the
    least peak without any: they never raise it.
    """
    least_bytes, placement, first = _first(problem, solver_seconds)
    if least_bytes is None:
        return problem, first
    for share in _STEPS:
        least_bytes, placement = _lowered(problem, least_bytes, placement, share, solver_seconds)
    at_least = replace(problem, memory_cap_bytes=least_bytes)
    return at_least, solve(at_least, time_limit_seconds=solver_seconds, warm_start=placement)


def _first(
    problem: PlacementProblem, solver_seconds: float
) -> tuple[Bytes | None, Mapping[str, str], Solution]:
    """A peak to start from, if there is any, with its placement, and the solution that says so."""
    if problem.gradient_error > 0.0:
        _, exact = least_peak(replace(problem, gradient_error=0.0), solver_seconds)
        if exact.is_placed:
            return exact.peak_bytes, exact.placement, exact
    first = solve(replace(problem, memory_cap_bytes=1), time_limit_seconds=solver_seconds)
    return first.smallest_feasible_cap_bytes, first.witness, first


def _lowered(
    problem: PlacementProblem,
    least_bytes: Bytes,
    placement: Mapping[str, str],
    share: float,
    solver_seconds: float,
) -> tuple[Bytes, Mapping[str, str]]:
    """The peak, and its placement, below which lowering the cap by ``share`` finds none."""
    while True:
        cap_bytes = min(round(least_bytes * (1 - share)), least_bytes - 1)
        found = solve(
            replace(problem, memory_cap_bytes=cap_bytes),
            time_limit_seconds=_SECONDS_SHARE * solver_seconds,
            relative_gap=_ANY_GAP,
            warm_start=placement,
        )
        if not found.is_placed:
            return least_bytes, placement
        least_bytes, placement = found.peak_bytes, found.placement
