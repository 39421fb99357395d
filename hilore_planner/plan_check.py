"""What a plan must satisfy beyond its types, checked on every load and before every save."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hilore_planner.errors import PlacementError, PlanFileError
from hilore_planner.solvers.problem import PlacementProblem, Solution, Unit
from hilore_planner.solvers.verify import replay

if TYPE_CHECKING:
    from hilore_planner.plan import PlacementPlan


def check(plan: PlacementPlan, origin: str) -> None:
    """Raises at the first thing wrong with a plan, naming the unit or position.

    Args:
        plan: the plan.
        origin: what the message starts with.

    Raises:
        PlanFileError: names are doubled, unknown or out of order; positions, sizes, times or risks
            are out of range; an action is not open to its unit; the placement does not do what the
            solution says of it.
    """
    for complaint in _complaints(plan):
        raise PlanFileError(f"{origin}: {complaint}")


def _complaints(plan: PlacementPlan) -> Iterator[str]:
    problem = plan.problem
    yield from _problem_complaints(problem)
    seen: set[str] = set()
    for unit in problem.units:
        if unit.name in seen:
            yield f"unit {unit.name!r} is listed twice"
        for complaint in _unit_complaints(unit, problem, seen):
            yield f"unit {unit.name!r}: {complaint}"
        seen.add(unit.name)
    for name in plan.sources.keys() ^ seen:
        yield f"unit {name!r} is in one of problem and sources, but not in both"
    yield from _part_complaints(plan)
    yield from _solution_complaints(problem, plan.solution)


def _part_complaints(plan: PlacementPlan) -> Iterator[str]:
    if plan.vocabulary < 0:
        yield f"vocabulary is {plan.vocabulary}; accepted: 0 or above"
    if plan.ordered_above_bytes < 0:
        yield f"ordered_above_bytes is {plan.ordered_above_bytes}; accepted: 0 or above"
    for advice in plan.advice:
        if min(advice.count, advice.size_bytes, advice.time_ns or 0) < 0:
            yield f"advice {advice.what!r}: a number in it is below 0; accepted: 0 or above"
    last = len(plan.problem.positions) - 1
    for index, part in enumerate(plan.fixed_parts):
        if not 0 <= part.first <= part.last <= last:
            yield (
                f"fixed part {index} ({part.what}) goes from position {part.first} to {part.last}; "
                f"accepted: from 0 to {last}"
            )
        if part.size_bytes < 0:
            yield f"fixed part {index} ({part.what}): size_bytes is {part.size_bytes}; accepted: 0 or above"


def _problem_complaints(problem: PlacementProblem) -> Iterator[str]:
    count = len(problem.positions)
    if not 0 <= problem.first_backward <= count:
        yield f"first_backward is {problem.first_backward}; accepted: 0 to {count}"
    if problem.memory_cap_bytes <= 0:
        yield f"memory_cap_bytes is {problem.memory_cap_bytes}; accepted: above 0"
    if not 0 <= problem.gradient_error < math.inf:
        yield f"gradient_error is {problem.gradient_error}; accepted: 0 or above"
    if len(set(problem.ladder)) < len(problem.ladder):
        yield f"ladder is {list(problem.ladder)}; accepted: no codec twice"
    for index, position in enumerate(problem.positions):
        if position.fixed_bytes < 0:
            yield (
                f"position {index} ({position.label}): fixed_bytes is {position.fixed_bytes}; "
                "accepted: 0 or above"
            )


def _unit_complaints(unit: Unit, problem: PlacementProblem, before: set[str]) -> Iterator[str]:
    for parent in unit.parents:
        if parent not in before:
            yield f"parent {parent!r} is not listed before it"
    yield from _position_complaints(unit, problem)
    yield from _negative(unit, "kept_bytes", "rebuilt_bytes", "recompute_ns", "keep_ns")
    yield from _negative(unit, "inexact_risk")
    yield from _ladder_complaints(unit, problem)
    codecs = [form.codec for form in unit.codecs]
    if len(set(codecs)) < len(codecs):
        yield f"a codec is offered twice: {', '.join(codecs)}"
    for form in unit.codecs:
        for complaint in _negative(form, "kept_bytes", "encode_ns", "decode_ns", "risk"):
            yield f"codec {form.codec!r}: {complaint}"


def _ladder_complaints(unit: Unit, problem: PlacementProblem) -> Iterator[str]:
    charges = unit.inexact_risks
    if len(charges) != max(len(problem.ladder), 1):
        yield (
            f"finer_inexact_risks has {len(charges) - 1} entries; accepted: one for each codec of the ladder but the "
            f"last, {max(len(problem.ladder) - 1, 0)}"
        )
    if charges[0] < 0 or list(charges) != sorted(charges):
        yield f"finer_inexact_risks and inexact_risk are {list(charges)}; accepted: 0 or above, ascending"
    for form in unit.codecs:
        if problem.ladder and form.risk > 0 and form.codec not in problem.ladder:
            yield f"codec {form.codec!r} loses something; accepted: such as are in the ladder"


def _position_complaints(unit: Unit, problem: PlacementProblem) -> Iterator[str]:
    count, first_backward = len(problem.positions), problem.first_backward
    if not 0 <= unit.made_at < first_backward:
        yield f"made_at is {unit.made_at}; accepted: 0 to {first_backward - 1}"
    if not unit.made_at - 1 <= unit.released_at < first_backward:
        yield (
            f"released_at is {unit.released_at}; accepted: {unit.made_at - 1} (made_at - 1) "
            f"to {first_backward - 1}"
        )
    if list(unit.read_at) != sorted(set(unit.read_at)):
        yield f"read_at is {list(unit.read_at)}; accepted: ascending, none twice"
    for position in unit.read_at:
        if not first_backward <= position < count:
            yield f"read_at holds {position}; accepted: {first_backward} to {count - 1}"


def _negative(record: object, *fields: str) -> Iterator[str]:
    for field in fields:
        value = getattr(record, field)
        if not 0 <= value < math.inf:
            yield f"{field} is {value}; accepted: 0 or above"


def _witness_complaints(problem: PlacementProblem, solution: Solution) -> Iterator[str]:
    if not solution.witness:
        return
    try:
        peak_bytes = replay(problem, solution.witness).peak_bytes
    except PlacementError as error:
        yield f"witness: {error}"
        return
    if peak_bytes != solution.smallest_feasible_cap_bytes:
        yield (
            "the solution says smallest_feasible_cap_bytes is "
            f"{solution.smallest_feasible_cap_bytes}, but its witness gives {peak_bytes}"
        )


def _solution_complaints(problem: PlacementProblem, solution: Solution) -> Iterator[str]:
    """Carries the placement out and compares with what the solution says of it."""
    if not solution.is_placed:
        if solution.placement:
            yield f"status is {solution.status}, but there is a placement"
        yield from _witness_complaints(problem, solution)
        return
    try:
        found = replay(problem, solution.placement)
    except PlacementError as error:
        yield str(error)
        return
    for field, stated, replayed in (
        ("peak_bytes", solution.peak_bytes, found.peak_bytes),
        ("peak_position", solution.peak_position, found.peak_position),
        ("saved_bytes", solution.saved_bytes, found.saved_bytes),
        ("objective_ns", solution.objective_ns, found.time_ns),
    ):
        if stated != replayed:
            yield f"the solution says {field} is {stated}, but its placement gives {replayed}"
    if not math.isclose(solution.risk, found.risk, rel_tol=1e-9):
        yield f"the solution says risk is {solution.risk}, but its placement gives {found.risk}"
    if found.peak_bytes > problem.memory_cap_bytes:
        owners = found.owners(found.peak_position)
        most = f" (most of them for unit {owners[0][0]!r})" if owners else ""
        yield (
            f"the placement needs {found.peak_bytes} bytes{most} at position "
            f"{found.peak_position}; the cap is {problem.memory_cap_bytes}"
        )
    # Sums of the same risks in another order differ in the last digits.
    if found.risk > problem.gradient_error**2 * (1 + 1e-9):
        yield (
            f"the placement's risk is {found.risk}, above the square of gradient_error "
            f"{problem.gradient_error}"
        )
