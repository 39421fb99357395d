"""What a plan leaves free for the code that is compiled from it; a cap decides how much."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hilore_planner.plan import PlacementPlan

    P = TypeVar("P", bound=PlacementPlan)

MARGIN = "margin"
SLACK_BYTES = 4 * 2**20
"""A caching allocator hands out blocks up to 1 MiB too large; which, depends on what else was allocated before."""
_MISSED = 0.01
"""Share of the room under a cap that an estimate may miss on a GPU: its allocator hands out blocks, not tensors."""
_OUTSIDE = frozenset({"weights", "inputs", "earlier gradients", "optimizer state", "others"})


def margin_bytes(room_bytes: int) -> int:
    """How much less than a cap an estimate should take for its code to stay under it.

    Args:
        room_bytes: under the cap, beside what is held whatever is planned.
    """
    return SLACK_BYTES + max(0, round(_MISSED * room_bytes))


def for_cap(plan: P, cap_bytes: int) -> P:
    """The plan with the margin for another cap, if it has one at all.

    Without it a plan that was made with all of a device's memory would leave a share of that free under any cap. Under
    caps below the plan's own peak the margin stays that of its peak, so that the smallest cap is the same whichever was
    asked for; so it does where nothing fitted.
    """
    old_bytes = sum(part.size_bytes for part in plan.fixed_parts if part.what == MARGIN)
    if not old_bytes or not plan.solution.is_placed:
        return plan
    held_bytes = sum(part.size_bytes for part in plan.fixed_parts if part.what in _OUTSIDE)
    least_bytes = min(plan.problem.memory_cap_bytes, plan.predicted_peak_bytes)
    new_bytes = margin_bytes(max(cap_bytes, least_bytes) - held_bytes)
    positions = tuple(
        replace(position, fixed_bytes=position.fixed_bytes + new_bytes - old_bytes)
        for position in plan.problem.positions
    )
    parts = tuple(
        replace(part, size_bytes=new_bytes) if part.what == MARGIN else part
        for part in plan.fixed_parts
    )
    return replace(plan, problem=replace(plan.problem, positions=positions), fixed_parts=parts)
