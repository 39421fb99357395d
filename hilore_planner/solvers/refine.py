"""Refinement of the integer program where a placement's replay holds more than the program counted.

At one position, for every unit: is it demanded by then, is it still needed. Where the program's
answer under the placement is not the replay's, the break or tail that decides it is written out,
and so, up the chain of readers, is all that the answer rests on. At that position the program is
then exact for this placement, so no placement comes twice.

Breaks and tails go where the replay's demand begins and ends, not where the position is: there they
decide every position between, and equal layers need the same ones. Units of one kind get them
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from hilore_planner.solvers.candidate import Candidate
from hilore_planner.solvers.problem import NEVER, PositionIndex
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, rebuilds
from hilore_planner.solvers.verify import Replay


def start_refinement(structure: Structure, near: Candidate | None = None) -> Refinement:
    """Peak rows where backward starts, where fixed bytes are highest, and where all bytes would be.

    The last is the peak of storing everything: of most placements, too, as long as much is stored.
    A placement ``near`` what is searched has peaks where that has them.
    """
    problem = structure.problem
    refinement = Refinement()
    if problem.positions:
        fixed = [position.fixed_bytes for position in problem.positions]
        steps = [0] * (len(fixed) + 1)
        for u, unit in enumerate(problem.units):
            if unit.can_store and structure.needed(u):
                steps[min(unit.released_at + 1, problem.first_backward)] += unit.kept_bytes
                steps[structure.surely_last[u] + 1] -= unit.kept_bytes
        stored = [size + moving for size, moving in zip(fixed, accumulate(steps), strict=False)]
        refinement.add_peak(fixed.index(max(fixed)))
        refinement.add_peak(stored.index(max(stored)))
        refinement.add_peak(min(problem.first_backward, len(fixed) - 1))
        if near is not None:
            refinement.add_peak(near.replay.peak_position)
    return refinement


def start_fenced(fenced: Structure, refinement: Refinement) -> Refinement:
    """A refinement that is exact behind fences at the peaks of another, which gets those of this."""
    rows = Refinement(peaks=refinement.peaks)
    add_fences(fenced, rows)
    for k in rows.peaks:
        write_out(fenced, rows, k)
    return rows


def add_fences(fenced: Structure, refinement: Refinement) -> None:
    """Keep the program to the structure's fences."""
    for u in fenced.entries():
        refinement.add_break(u, fenced.fences[u])


def write_out(fenced: Structure, refinement: Refinement, position: PositionIndex) -> bool:
    """Make the program exact at ``position`` for every placement behind fences; False if it was already.

    Units that may be demanded by then, but need not be, are those of the few layers whose turn is then.
    """
    grown = False
    for u, unit in enumerate(fenced.problem.units):
        if fenced.needed(u) and unit.layer is not None:
            for k in (position - 1, position):
                if fenced.earliest[u] <= k < fenced.latest[u]:
                    grown |= refinement.add_break(u, k)
            if fenced.surely_last[u] < position <= fenced.possibly_last[u]:
                grown |= refinement.add_tail(u, position)
    return grown


@dataclass(frozen=True, slots=True)
class _View:
    """A placement with its replay, seen through the program's refinement."""

    structure: Structure
    refinement: Refinement
    actions: tuple[str | None, ...]
    demand: tuple[PositionIndex, ...]
    last: tuple[PositionIndex, ...]
    horizon: Mapping[int, PositionIndex]
    """What equal layers share lies after this; what lies before is too much to repeat."""


def refine(
    structure: Structure,
    refinement: Refinement,
    placement: Mapping[str, str],
    replay: Replay,
    position: PositionIndex,
) -> bool:
    """Make the program exact at ``position`` for ``placement``; False if it was already."""
    names = [unit.name for unit in structure.problem.units]
    view = _View(
        structure=structure,
        refinement=refinement,
        actions=tuple(placement.get(name) for name in names),
        demand=tuple(replay.demand.get(name, NEVER) for name in names),
        last=tuple(replay.last.get(name, NEVER) for name in names),
        horizon=structure.fences or structure.fences_ahead(1),
    )
    grown = refinement.add_peak(position)
    if position < structure.problem.first_backward:
        return grown
    for u, action in enumerate(view.actions):
        if action is not None:
            grown |= _refine_unit(view, u, action, position)
    return grown


def _refine_unit(view: _View, u: int, action: str, k: PositionIndex) -> bool:
    grown = False
    remade = rebuilds(view.structure, u, action)
    if remade and view.demand[u] <= k:
        grown |= _add_break(view, u, view.demand[u])
    if remade and action != RECOMPUTE and view.demand[u] >= k:
        grown |= _deny(view, u)
    if view.structure.surely_last[u] < k <= view.last[u]:
        grown |= _add_tail(view, u, k if remade else view.last[u])
        for v in view.structure.rebuilders[u]:
            if view.actions[v] == RECOMPUTE and view.demand[v] == view.last[u]:
                grown |= _deny(view, v)
    return grown


def _deny(view: _View, unit: int) -> bool:
    """Let the program see that ``unit`` is not demanded sooner: nor is any reader up the chain."""
    grown, seen, stack = False, {unit}, [unit]
    while stack:
        u = stack.pop()
        grown |= _add_break(view, u, view.demand[u] - 1)
        readers = {v for v in view.structure.rebuilders[u] if view.actions[v] == RECOMPUTE}
        stack += readers - seen
        seen |= readers
    return grown


def _add_break(view: _View, unit: int, position: PositionIndex) -> bool:
    """Add a break, and as far from their latest demand those of the other units of its kind."""
    structure = view.structure
    if not structure.earliest[unit] <= position < structure.latest[unit]:
        return False
    if not view.refinement.add_break(unit, position):
        return False
    offset = structure.latest[unit] - position
    if position > view.horizon.get(unit, NEVER):
        for other in structure.alike(unit):
            shifted = structure.latest[other] - offset
            if structure.earliest[other] <= shifted:
                view.refinement.add_break(other, shifted)
    return True


def _add_tail(view: _View, unit: int, position: PositionIndex) -> bool:
    """Add a tail, and as far from their latest demand those of the other units of its kind."""
    structure = view.structure
    if not view.refinement.add_tail(unit, position):
        return False
    offset = structure.latest[unit] - position
    if position > view.horizon.get(unit, NEVER):
        for other in structure.alike(unit):
            shifted = structure.latest[other] - offset
            if structure.surely_last[other] < shifted <= structure.possibly_last[other]:
                view.refinement.add_tail(other, shifted)
    return True
