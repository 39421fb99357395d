"""Codecs for a fixed set of units, so that their copies take a given number of bytes and risk is least."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hilore_planner.plan import Figures, PlacementPlan
from hilore_planner.solvers import refigured, replay
from hilore_planner.solvers.problem import compress_action

STORE = "store"


@dataclass(frozen=True, slots=True)
class Form:
    """One way to keep a unit."""

    action: str
    kept_bytes: int
    risk: float


def forms_of(
    plan: PlacementPlan, names: Sequence[str], codecs: Sequence[str]
) -> dict[str, list[Form]]:
    """By unit, what is offered to it of ``codecs`` and of storing it, smallest first, none worse than a smaller one.

    Codecs that risk the whole gradient are left out, as of every plan.
    """
    found: dict[str, list[Form]] = {}
    for unit in plan.problem.units:
        if unit.name not in names:
            continue
        offered = [
            Form(compress_action(form.codec), form.kept_bytes, form.risk)
            for form in unit.codecs
            if form.codec in codecs and form.risk < 1
        ]
        if STORE in codecs:
            offered.append(Form(STORE, unit.kept_bytes, 0.0))
        found[unit.name] = _lower_hull(offered)
    return found


def allocate(forms: Mapping[str, Sequence[Form]], budget_bytes: int) -> dict[str, str]:
    """The forms with the least summed risk within a budget: from the smallest, the steepest improvements first.

    Optimal but for the last step, as each unit's forms are a convex hull.
    """
    chosen = dict.fromkeys(forms, 0)
    left = budget_bytes - sum(options[0].kept_bytes for options in forms.values())
    steps = [(-_slope(options, 1), name, 1) for name, options in forms.items() if len(options) > 1]
    heapq.heapify(steps)
    while steps:
        _, name, index = heapq.heappop(steps)
        options = forms[name]
        cost = options[index].kept_bytes - options[index - 1].kept_bytes
        if cost > left:
            continue
        left -= cost
        chosen[name] = index
        if index + 1 < len(options):
            heapq.heappush(steps, (-_slope(options, index + 1), name, index + 1))
    return {name: forms[name][index].action for name, index in chosen.items()}


def with_placement(plan: PlacementPlan, placement: Mapping[str, str]) -> PlacementPlan:
    """The plan with another placement, and the figures that its replay gives."""
    found = replay(plan.problem, dict(placement))
    problem = replace(
        plan.problem,
        memory_cap_bytes=max(plan.problem.memory_cap_bytes, found.peak_bytes),
        gradient_error=max(plan.problem.gradient_error, (found.risk * (1 + 1e-6)) ** 0.5),
    )
    solution = replace(
        plan.solution,
        status="feasible",
        engine="given",
        placement=dict(placement),
        bound_ns=0,
        gap=1.0,
    )
    # Those of the other placement's compiled graphs say nothing of this one's.
    return replace(plan, problem=problem, solution=refigured(solution, found), predicted=Figures())


def _slope(options: Sequence[Form], index: int) -> float:
    before, after = options[index - 1], options[index]
    return (before.risk - after.risk) / (after.kept_bytes - before.kept_bytes)


def _lower_hull(offered: Sequence[Form]) -> list[Form]:
    hull: list[Form] = []
    for form in _improving(sorted(offered, key=lambda form: (form.kept_bytes, form.risk))):
        while len(hull) > 1 and _slope(hull, len(hull) - 1) <= _slope([hull[-1], form], 1):
            hull.pop()
        hull.append(form)
    return hull


def _improving(offered: Sequence[Form]) -> Iterator[Form]:
    """Without forms that are no better than a smaller one."""
    least = float("inf")
    last_bytes = -1
    for form in offered:
        if form.risk < least and form.kept_bytes > last_bytes:
            least, last_bytes = form.risk, form.kept_bytes
            yield form
