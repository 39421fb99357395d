"""Searching the folded program: solve, deal, replay, and solve again where the replay is over the cap."""

from __future__ import annotations

from collections.abc import Iterable

from hilore_planner.solvers.candidate import Candidate, candidate
from hilore_planner.solvers.deal import dealt
from hilore_planner.solvers.fold import Folded, fold, looks
from hilore_planner.solvers.linear import LinearResult, solve_linear
from hilore_planner.solvers.program import read_placement
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.repair import complete, place
from hilore_planner.solvers.search import Found, LeastTime, Limits, over_positions
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, STORE

_ROUNDS = 4
_PEAKS_A_ROUND = 2
"""Peak rows tell layers apart: with many, little is left to fold."""

_SHARE = 0.3
"""Of the time that is left, for one round."""

_GAP = 0.5
"""Of the gap allowed: the rest is for what dealing loses."""


def search_folded(
    goal: LeastTime,
    structure: Structure,
    refinement: Refinement,
    limits: Limits,
    start: Candidate | None,
) -> Found:
    """The best placement dealt from the folded program, or ``start``, and the folded bound.

    Args:
        goal: what is minimised.
        structure: the problem's structure.
        refinement: where the first peak rows are; grows by those that are found to be needed.
        limits: when to stop.
        start: a placement that may be returned, if there is one.
    """
    tried = Refinement(peaks=refinement.peaks)  # one list: the program itself gets the rows, too
    alike = looks(structure)
    best, bound, known_bound = start, 0, 0
    for _ in range(_ROUNDS):
        folded = fold(structure, alike, tried, goal.cap_bytes)
        result = solve_linear(
            folded.program.model,
            relative_gap=_GAP * limits.relative_gap,
            deadline=limits.part(_SHARE).deadline,
        )
        bound = max(bound, goal.bound(folded.program, result))
        if result.outcome == "infeasible":
            return Found(None, bound, infeasible=True)
        if not result.values:
            break
        made: list[Candidate] = []
        for choice in dealt(folded, result.values):
            made.append(candidate(structure, place(structure, complete(structure, choice))))
            best = _best(goal, structure, best, made[-1:])
            if best is not None and limits.close(goal.value(best.replay), bound):
                return Found(best, bound)
        nearest = min(made, key=lambda each: each.replay.peak_bytes)
        over = over_positions(nearest.replay.position_bytes, goal.cap_bytes)
        new = [k for k in over if k not in tried.peaks][:_PEAKS_A_ROUND]
        has_stalled = limits.close(bound, known_bound)
        if has_stalled or not new:
            unfolded = _unfolded(goal, tried, folded, result, limits)
            return Found(_best(goal, structure, best, unfolded), bound)
        known_bound = bound
        for k in new:
            tried.add_peak(k)
    return Found(best, bound)


def _best(
    goal: LeastTime, structure: Structure, best: Candidate | None, made: Iterable[Candidate]
) -> Candidate | None:
    usable = [each for each in made if goal.accepts(structure, each)]
    known = usable if best is None else [best, *usable]
    return min(known, key=lambda each: goal.value(each.replay), default=None)


def _unfolded(
    goal: LeastTime, refinement: Refinement, folded: Folded, result: LinearResult, limits: Limits
) -> list[Candidate]:
    """What the program itself makes of the copies that the folded solution uses.

    Of many forms it uses few, and with those alone the program is small.
    """
    structure = folded.program.variables.structure
    if not any(structure.tainted):
        return []
    program = goal.program(structure, refinement)
    for first, members in folded.members.items():
        for action, count in folded.program.variables.actions[first].items():
            if result.values[count] < 0.5 and action not in (STORE, RECOMPUTE):
                for u in members:
                    program.model.column_upper[program.variables.actions[u][action]] = 0.0
    solved = solve_linear(
        program.model,
        relative_gap=_GAP * limits.relative_gap,
        deadline=limits.part(_SHARE).deadline,
    )
    if not solved.values:
        return []
    return [candidate(structure, read_placement(program.variables, solved.values))]
