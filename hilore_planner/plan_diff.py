"""What changed from one plan to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hilore_planner.solvers.problem import Unit, compress_action

if TYPE_CHECKING:
    from hilore_planner.plan import PlacementPlan

NOT_AT_HAND = "not needed"
"""Stands for the action of a unit that a placement leaves out: nothing in backward reads it."""


@dataclass(frozen=True, slots=True)
class UnitChange:
    """A unit whose action differs; None on the side that does not have the unit."""

    unit: str
    before: str | None
    after: str | None
    before_kept_bytes: int
    after_kept_bytes: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Two plans and the units that differ, in the order of the plans."""

    before: PlacementPlan
    after: PlacementPlan
    changes: tuple[UnitChange, ...]


def diff(before: PlacementPlan, after: PlacementPlan) -> PlanDiff:
    """Compares two plans unit by unit; units are the same if they have the same name."""
    units_before = {unit.name: unit for unit in before.problem.units}
    units_after = {unit.name: unit for unit in after.problem.units}
    changes = []
    for name in units_before | units_after:
        action_before, kept_before = _action(units_before.get(name), before)
        action_after, kept_after = _action(units_after.get(name), after)
        if action_before != action_after:
            changes.append(UnitChange(name, action_before, action_after, kept_before, kept_after))
    return PlanDiff(before, after, tuple(changes))


def _action(unit: Unit | None, plan: PlacementPlan) -> tuple[str | None, int]:
    if unit is None:
        return None, 0
    action = plan.solution.placement.get(unit.name, NOT_AT_HAND)
    return action, kept_bytes(unit, action)


def kept_bytes(unit: Unit, action: str) -> int:
    """Bytes that an action keeps of a unit from forward to backward."""
    if action == "store":
        return unit.kept_bytes
    for form in unit.codecs:
        if action == compress_action(form.codec):
            return form.kept_bytes
    return 0
