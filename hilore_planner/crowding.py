"""Where memory is short, the compiled code must keep the plan's order."""

from __future__ import annotations

from collections.abc import Mapping

from hilore_planner.solvers import replay
from hilore_planner.solvers.problem import PlacementProblem

_CROWDED = 0.15
"""Share of the room under the cap; steps with less than that left keep their order strictly."""


def order_limit(problem: PlacementProblem) -> int:
    """Bytes alive above which a step is so near the cap that it must keep its place.

    Elsewhere Inductor may fuse across steps: that takes a little memory there is, and saves time.
    """
    least_bytes = min((position.fixed_bytes for position in problem.positions), default=0)
    return problem.memory_cap_bytes - round(_CROWDED * (problem.memory_cap_bytes - least_bytes))


def crowded_positions(
    problem: PlacementProblem, placement: Mapping[str, str], above_bytes: int
) -> frozenset[int]:
    """Positions of a placement where more than ``above_bytes`` are alive."""
    sizes = replay(problem, placement).position_bytes
    return frozenset(position for position, size in enumerate(sizes) if size > above_bytes)
