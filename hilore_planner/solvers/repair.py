"""Greedy repair: bring a placement under the cap one unit at a time, then use the room that is left.

A choice names an action for every unit, also for those that nothing needs yet; the placement is
what backward reads and, of the rest, what recomputing it reads. So one unit's action can change and
what it newly needs is at hand at once. Every step is replayed in full: a result that fits, fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hilore_planner.solvers.candidate import Candidate, candidate
from hilore_planner.solvers.problem import Bytes, Nanoseconds, compress_action
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, STORE
from hilore_planner.solvers.verify import Replay

_TRIES_A_STEP = 6
_FILLS = 24

Choice = dict[str, str]


@dataclass(frozen=True, slots=True)
class _State:
    """A choice and what it makes."""

    choice: Choice
    made: Candidate


@dataclass(frozen=True, slots=True)
class _Move:
    """One unit's other action, with what it should free and cost."""

    unit: str
    action: str
    freed_bytes: Bytes
    added_ns: Nanoseconds

    def rate(self) -> float:
        """Bytes freed for a nanosecond; free ones first."""
        return math.inf if self.added_ns <= 0 else self.freed_bytes / self.added_ns


def place(structure: Structure, choice: Choice) -> dict[str, str]:
    """The placement a choice makes: its actions for what is needed."""
    units = structure.problem.units
    needed = [bool(unit.read_at) for unit in units]
    for u in reversed(range(len(units))):
        if needed[u] and choice[units[u].name] == RECOMPUTE:
            for p in structure.parents[u]:
                needed[p] = True
    return {unit.name: choice[unit.name] for unit, need in zip(units, needed, strict=True) if need}


def complete(structure: Structure, placement: dict[str, str]) -> Choice:
    """A choice that makes ``placement``; other units are rebuilt if they come to be needed."""
    return {
        unit.name: placement.get(unit.name)
        or next(iter(_actions(structure, u, prefer=RECOMPUTE)), STORE)
        for u, unit in enumerate(structure.problem.units)
    }


def repair(
    structure: Structure, placement: dict[str, str], cap_bytes: Bytes, *, steps: int = 64
) -> Candidate | None:
    """A placement under the cap and in the risk budget near ``placement``.

    Args:
        structure: the problem's structure.
        placement: what to repair.
        cap_bytes: the cap.
        steps: how many units may change.

    Returns:
        The repaired placement, or None if none was found.
    """
    state = _budgeted(structure, placement)
    for _ in range(steps):
        if state.made.fits(structure, cap_bytes):
            return _fill(structure, state, cap_bytes).made
        moved = _step(structure, state, cap_bytes)
        if moved is None:
            return None
        state = moved
    return None


def into_budget(structure: Structure, placement: dict[str, str]) -> Candidate | None:
    """A placement in the risk budget near ``placement``, or None if none was found."""
    made = _budgeted(structure, placement).made
    return made if made.in_budget(structure) else None


def _budgeted(structure: Structure, placement: dict[str, str]) -> _State:
    """Give up compressed copies, the riskiest first, until the risk is in its budget."""
    state = _try(structure, complete(structure, placement))
    risks = {
        (unit.name, compress_action(form.codec)): form.risk
        for unit, forms in zip(structure.problem.units, structure.forms, strict=True)
        for form in forms
    }
    lossy = [item for item in state.choice.items() if risks.get(item, 0.0) > 0.0]
    index = {unit.name: u for u, unit in enumerate(structure.problem.units)}
    for name, _ in sorted(lossy, key=lambda item: -risks[item]):
        if state.made.in_budget(structure):
            break
        exact = [a for a in _actions(structure, index[name]) if risks.get((name, a), 0.0) <= 0.0]
        if exact:
            state = _try(structure, {**state.choice, name: exact[0]})
    return state


def _step(structure: Structure, state: _State, cap_bytes: Bytes) -> _State | None:
    """The best of the most promising moves, by the excess it removes for its time."""
    best, best_rate = None, 0.0
    moves = sorted(_moves(structure, state), key=lambda move: -move.rate())
    for move in moves[:_TRIES_A_STEP]:
        tried = _try(structure, {**state.choice, move.unit: move.action})
        removed = _excess(state.made.replay, cap_bytes) - _excess(tried.made.replay, cap_bytes)
        if removed <= 0 or not tried.made.in_budget(structure):
            continue
        added = tried.made.replay.time_ns - state.made.replay.time_ns
        rate = math.inf if added <= 0 else removed / added
        if rate > best_rate:
            best, best_rate = tried, rate
    return best


def _moves(structure: Structure, state: _State) -> Iterator[_Move]:
    """Other actions for what is alive at the peak, and for readers that want it so early."""
    found = state.made.replay
    index = {unit.name: u for u, unit in enumerate(structure.problem.units)}
    for name, size in found.owners(found.peak_position):
        u, chosen = index[name], state.choice[name]
        for action in _actions(structure, u):
            added = _time_ns(structure, u, action) - _time_ns(structure, u, chosen)
            freed = size - _kept_bytes(structure, u, action)
            if action != chosen and freed > 0:
                yield _Move(name, action, freed, added)
        for v in structure.rebuilders[u]:
            reader = structure.problem.units[v]
            early = found.demand.get(reader.name) == found.demand[name]
            rebuilt = state.made.placement.get(reader.name) == RECOMPUTE
            if chosen != STORE and early and rebuilt and reader.can_store:
                yield _Move(reader.name, STORE, size, reader.keep_ns - reader.recompute_ns)


def _fill(structure: Structure, state: _State, cap_bytes: Bytes) -> _State:
    """Store what is rebuilt while there is room, the dearest to rebuild for its bytes first."""
    units = structure.problem.units
    room = cap_bytes - state.made.replay.peak_bytes
    fitting = [
        unit
        for unit in units
        if state.made.placement.get(unit.name) == RECOMPUTE
        and unit.can_store
        and unit.kept_bytes <= room
    ]
    fitting.sort(key=lambda unit: -unit.recompute_ns / max(unit.kept_bytes, 1))
    for unit in fitting[:_FILLS]:
        tried = _try(structure, {**state.choice, unit.name: STORE})
        faster = tried.made.replay.time_ns < state.made.replay.time_ns
        if faster and tried.made.fits(structure, cap_bytes):
            state = tried
    return state


def _try(structure: Structure, choice: Choice) -> _State:
    return _State(choice, candidate(structure, place(structure, choice)))


def _excess(found: Replay, cap_bytes: Bytes) -> Bytes:
    return sum(size - cap_bytes for size in found.position_bytes if size > cap_bytes)


def _actions(structure: Structure, u: int, prefer: str = STORE) -> list[str]:
    unit = structure.problem.units[u]
    actions = [
        *([STORE] if unit.can_store else []),
        *([RECOMPUTE] if unit.can_recompute else []),
        *(compress_action(form.codec) for form in structure.forms[u]),
    ]
    return sorted(actions, key=lambda action: action != prefer)


def _time_ns(structure: Structure, u: int, action: str) -> Nanoseconds:
    unit = structure.problem.units[u]
    for form in structure.forms[u]:
        if action == compress_action(form.codec):
            return form.encode_ns + form.decode_ns
    return unit.keep_ns if action == STORE else unit.recompute_ns


def _kept_bytes(structure: Structure, u: int, action: str) -> Bytes:
    unit = structure.problem.units[u]
    for form in structure.forms[u]:
        if action == compress_action(form.codec):
            return form.kept_bytes
    return unit.kept_bytes if action == STORE else 0
