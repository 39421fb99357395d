"""Replay of a placement: its memory, time and risk, from the definitions in ``problem``.

Shares no code with the integer program, so that each checks the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from hilore_planner.errors import PlacementError
from hilore_planner.solvers.problem import (
    Bytes,
    CompressedForm,
    Nanoseconds,
    PlacementProblem,
    PositionIndex,
    Solution,
    Unit,
    compress_action,
)


@dataclass(frozen=True, slots=True)
class Span:
    """One unit's bytes over the closed interval of positions ``first`` to ``last``."""

    unit: str
    first: PositionIndex
    last: PositionIndex
    size_bytes: Bytes


@dataclass(frozen=True, slots=True)
class Replay:
    """What a placement does to a problem."""

    position_bytes: tuple[Bytes, ...]
    """Everything alive at each position, fixed bytes included."""
    peak_bytes: Bytes
    peak_position: PositionIndex
    """The first position at the peak."""
    saved_bytes: Bytes
    """Kept from forward to backward: stored and compressed copies."""
    time_ns: Nanoseconds
    risk: float
    demand: dict[str, PositionIndex]
    """First backward position at which each unit must be at hand."""
    last: dict[str, PositionIndex]
    """Last backward position that needs each unit."""
    spans: tuple[Span, ...]

    def owners(self, position: PositionIndex) -> tuple[tuple[str, Bytes], ...]:
        """The units alive at ``position`` with their bytes, largest first."""
        alive: dict[str, Bytes] = {}
        for span in self.spans:
            if span.first <= position <= span.last:
                alive[span.unit] = alive.get(span.unit, 0) + span.size_bytes
        return tuple(sorted(alive.items(), key=lambda item: (-item[1], item[0])))


def replay(problem: PlacementProblem, placement: Mapping[str, str]) -> Replay:
    """Carry out ``placement`` on ``problem``.

    Args:
        problem: the problem.
        placement: ``"store"``, ``"recompute"`` or ``"compress:CODEC"`` by unit name; units that are
            not at hand in backward are left out.

    Raises:
        PlacementError: naming the first unit found whose action is unknown, not open to it,
            missing, or needed by nothing.
    """
    forms = _forms(problem, placement)
    demand, last = _needs(problem, placement)
    spans = tuple(
        span
        for unit in problem.units
        if unit.name in placement
        for span in _spans(problem, unit, placement, forms, demand[unit.name], last[unit.name])
        if span.size_bytes and span.first <= span.last
    )
    position_bytes = _position_bytes(problem, spans)
    peak_bytes = max(position_bytes, default=0)
    return Replay(
        position_bytes=position_bytes,
        peak_bytes=peak_bytes,
        peak_position=position_bytes.index(peak_bytes) if position_bytes else 0,
        saved_bytes=sum(_saved_bytes(unit, placement, forms) for unit in problem.units),
        time_ns=sum(_time_ns(unit, placement, forms) for unit in problem.units),
        risk=_risk(problem, placement, forms),
        demand=demand,
        last=last,
        spans=spans,
    )


def _forms(
    problem: PlacementProblem, placement: Mapping[str, str]
) -> dict[str, CompressedForm | None]:
    """The form that each placed unit is kept in, once its action is known to be open to it."""
    units = {unit.name: unit for unit in problem.units}
    for name in placement:
        if name not in units:
            raise PlacementError(name, "no such unit in the problem")
    return {name: _form(unit, placement[name]) for name, unit in units.items() if name in placement}


def _form(unit: Unit, action: str) -> CompressedForm | None:
    """The form an action keeps (None: not compressed), if the action is open to the unit."""
    if action == "store" and unit.can_store:
        return None
    if action == "recompute" and unit.can_recompute:
        return None
    for form in unit.codecs:
        if action == compress_action(form.codec):
            return form
    open_actions = [
        *(["store"] if unit.can_store else []),
        *(["recompute"] if unit.can_recompute else []),
        *(compress_action(form.codec) for form in unit.codecs),
    ]
    raise PlacementError(unit.name, f"{action!r} is not open to it; open are {open_actions}")


def _needs(
    problem: PlacementProblem, placement: Mapping[str, str]
) -> tuple[dict[str, PositionIndex], dict[str, PositionIndex]]:
    """First and last backward position that need each unit, readers before what they read."""
    demand: dict[str, PositionIndex] = {}
    last: dict[str, PositionIndex] = {}
    for unit in reversed(problem.units):
        name = unit.name
        if unit.read_at:
            demand[name] = min(demand.get(name, unit.read_at[0]), unit.read_at[0])
            last[name] = max(last.get(name, unit.read_at[-1]), unit.read_at[-1])
        if name not in demand:
            if name in placement:
                raise PlacementError(name, "nothing in backward needs it; leave it out")
            continue
        if name not in placement:
            raise PlacementError(
                name, f"not at hand, but {_reader(problem, placement, demand, unit)}"
            )
        if placement[name] == "recompute":
            position = demand[name]
            for parent in unit.parents:
                demand[parent] = min(demand.get(parent, position), position)
                last[parent] = max(last.get(parent, position), position)
    return demand, last


def _reader(
    problem: PlacementProblem,
    placement: Mapping[str, str],
    demand: Mapping[str, PositionIndex],
    unit: Unit,
) -> str:
    """Who reads the unit first, and where."""
    readers = [
        other.name
        for other in problem.units
        if unit.name in other.parents
        and placement.get(other.name) == "recompute"
        and demand.get(other.name) == demand[unit.name]
    ]
    reader = "backward" if demand[unit.name] in unit.read_at else readers[0]
    return f"{reader!r} reads it at position {demand[unit.name]}"


def _spans(
    problem: PlacementProblem,
    unit: Unit,
    placement: Mapping[str, str],
    forms: Mapping[str, CompressedForm | None],
    demand: PositionIndex,
    last: PositionIndex,
) -> list[Span]:
    rebuilt = Span(unit.name, demand, last, unit.rebuilt_bytes)
    action = placement[unit.name]
    if action == "recompute":
        return [rebuilt]
    form = forms[unit.name]
    if form is None:
        first = min(unit.released_at + 1, problem.first_backward)
        return [Span(unit.name, first, last, unit.kept_bytes)]
    until = demand if unit.rebuilt_bytes else last
    kept = Span(unit.name, min(unit.made_at, problem.first_backward), until, form.kept_bytes)
    return [kept, rebuilt]


def _position_bytes(problem: PlacementProblem, spans: tuple[Span, ...]) -> tuple[Bytes, ...]:
    steps = [0] * (len(problem.positions) + 1)
    for span in spans:
        steps[span.first] += span.size_bytes
        steps[span.last + 1] -= span.size_bytes
    return tuple(
        position.fixed_bytes + moving
        for position, moving in zip(problem.positions, accumulate(steps[:-1]), strict=True)
    )


def _saved_bytes(
    unit: Unit, placement: Mapping[str, str], forms: Mapping[str, CompressedForm | None]
) -> Bytes:
    if placement.get(unit.name, "recompute") == "recompute":
        return 0
    form = forms[unit.name]
    return unit.kept_bytes if form is None else form.kept_bytes


def _time_ns(
    unit: Unit, placement: Mapping[str, str], forms: Mapping[str, CompressedForm | None]
) -> Nanoseconds:
    if unit.name not in placement:
        return 0
    form = forms[unit.name]
    if form is not None:
        return form.encode_ns + form.decode_ns
    return unit.keep_ns if placement[unit.name] == "store" else unit.recompute_ns


def _risk(
    problem: PlacementProblem,
    placement: Mapping[str, str],
    forms: Mapping[str, CompressedForm | None],
) -> float:
    """Sum of the forms' risks, and of what recomputing from something inexact adds."""
    risk = 0.0
    inexact: set[str] = set()
    used = [form.codec for form in forms.values() if form is not None and form.risk > 0]
    rung = max(
        (problem.ladder.index(codec) for codec in used if codec in problem.ladder), default=-1
    )
    for unit in problem.units:
        form = forms.get(unit.name)
        if form is not None and form.risk > 0:
            inexact.add(unit.name)
            risk += form.risk
        elif placement.get(unit.name) == "recompute" and not inexact.isdisjoint(unit.parents):
            inexact.add(unit.name)
            risk += unit.inexact_risks[rung]
    return risk


def refigured(solution: Solution, found: Replay) -> Solution:
    """The solution with the figures of a replay."""
    return replace(
        solution,
        objective_ns=found.time_ns,
        peak_bytes=found.peak_bytes,
        peak_position=found.peak_position,
        saved_bytes=found.saved_bytes,
        risk=found.risk,
    )
