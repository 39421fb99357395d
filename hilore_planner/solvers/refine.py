"""Refinement of the integer program where a placement's replay holds more than the program counted.

At one position, for every unit: is it demanded by then, is it still needed. Where the program's
answer under the placement is not the replay's, the break or tail that decides it is written out,
and so, up the chain of readers, is all that the answer rests on. At that position the program is
then exact for this placement, so no placement comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hilore_planner.solvers.problem import PositionIndex
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, rebuilds
from hilore_planner.solvers.verify import Replay


@dataclass(frozen=True, slots=True)
class _View:
    """A placement with its replay, seen through the program's refinement."""

    structure: Structure
    refinement: Refinement
    actions: tuple[str | None, ...]
    demand: tuple[PositionIndex | None, ...]
    last: tuple[PositionIndex | None, ...]


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
        demand=tuple(replay.demand.get(name) for name in names),
        last=tuple(replay.last.get(name) for name in names),
    )
    grown = refinement.add_peak(position)
    if position < structure.problem.first_backward:
        return grown
    for u, action in enumerate(view.actions):
        if action is not None:
            grown |= _refine_unit(view, u, action, position)
    return grown


def _refine_unit(view: _View, u: int, action: str, k: PositionIndex) -> bool:
    demand, last = view.demand[u], view.last[u]
    assert demand is not None  # the replay has every placed unit
    assert last is not None
    grown = False
    if rebuilds(view.structure, u, action):
        if demand <= k < view.structure.latest[u]:
            grown |= view.refinement.add_break(u, k)
        if action != RECOMPUTE and demand >= k:
            grown |= _deny(view, u, k - 1)
    if view.structure.surely_last[u] < k <= last:
        grown |= view.refinement.add_tail(u, k)
        for v in view.structure.rebuilders[u]:
            if _needed_late(view, v, k):
                grown |= _deny(view, v, k - 1)
    return grown


def _needed_late(view: _View, v: int, k: PositionIndex) -> bool:
    demand = view.demand[v]
    return view.actions[v] == RECOMPUTE and demand is not None and demand >= k


def _deny(view: _View, unit: int, k: PositionIndex) -> bool:
    """Let the program see that ``unit`` and every reader up the chain are not demanded by k."""
    structure = view.structure
    grown, seen, stack = False, {unit}, [unit]
    while stack:
        u = stack.pop()
        if not structure.earliest[u] <= k < structure.latest[u]:
            continue
        grown |= view.refinement.add_break(u, k)
        readers = {v for v in structure.rebuilders[u] if view.actions[v] == RECOMPUTE}
        stack += readers - seen
        seen |= readers
    return grown
