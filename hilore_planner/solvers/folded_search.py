"""Searching the folded program: solve, deal, replay, and solve again where the replay is over the cap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hilore_planner.solvers.candidate import Candidate, candidate
from hilore_planner.solvers.deal import dealt
from hilore_planner.solvers.fold import Folded, fold, looks
from hilore_planner.solvers.linear import LinearResult, solve_linear
from hilore_planner.solvers.problem import PositionIndex
from hilore_planner.solvers.refine import refine
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.repair import complete, place
from hilore_planner.solvers.search import Found, Goal, Limits, better, over_positions
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, STORE

_ROUNDS = 8
_PEAKS_A_ROUND = 2
_REFINED_A_ROUND = 3
"""What is refined tells layers apart: with much, little is left to fold."""

_SHARE = 0.5
"""Of the time that is left, for one round."""

_GAP = 0.5
"""Of the gap allowed: the rest is for what dealing loses."""


def search_folded(
    goal: Goal,
    structure: Structure,
    refinement: Refinement,
    limits: Limits,
    start: Candidate | None,
    *,
    refines: bool,
    rounds: int = _ROUNDS,
) -> Found:
    """The best placement dealt from the folded program, or ``start``, and the folded bound.

    Args:
        goal: what is minimised.
        structure: the problem's structure.
        refinement: what is written out of the program; grows by what is found to be needed.
        limits: when to stop.
        start: a placement that may be returned, if there is one.
        refines: go on where peak rows alone do not help any more.
        rounds: how often to solve at most.
    """
    alike = looks(structure)
    best, bound, known_bound = start, 0, 0
    for _ in range(rounds):
        folded = fold(structure, alike, refinement)
        program = goal.program(folded.choices)
        result = solve_linear(
            program.model,
            relative_gap=_GAP * limits.relative_gap,
            deadline=limits.part(_SHARE).deadline,
        )
        if result.outcome == "infeasible":
            return Found(best, bound, infeasible=refinement.bounds())
        if refinement.bounds():
            bound = max(bound, goal.bound(program, result))
        if not result.values:
            break
        made = []
        for each in _dealt(structure, folded, result, refinement.fences):
            made.append(each)
            best = better(goal, best, each if goal.accepts(structure, each) else None)
            if _is_proven(goal, limits, best, bound):
                return Found(best, bound)
        # Only the last are as the program has it: nothing is pooled.
        nearest = min(made[-2:], key=lambda each: each.replay.peak_bytes)
        over = over_positions(nearest.replay.position_bytes, goal.limit_bytes(program, result))
        excess_bytes = nearest.replay.peak_bytes - goal.limit_bytes(program, result)
        is_near = excess_bytes <= limits.relative_gap * nearest.replay.peak_bytes
        if refines and (is_near or best is None):
            best = better(goal, best, goal.repair(structure, nearest))
        has_grown = any([refinement.add_peak(k) for k in over[:_PEAKS_A_ROUND]])
        if not has_grown or limits.close(bound, known_bound):
            has_grown = refines and _refined(structure, refinement, nearest, over)
        known_bound = bound
        if not has_grown or limits.out_of_time() or _is_proven(goal, limits, best, bound):
            break
    return Found(best, bound)


def _refined(
    structure: Structure, refinement: Refinement, nearest: Candidate, over: Sequence[PositionIndex]
) -> bool:
    return any(
        [
            refine(structure, refinement, nearest.placement, nearest.replay, k)
            for k in over[:_REFINED_A_ROUND]
        ]
    )


def _is_proven(goal: Goal, limits: Limits, best: Candidate | None, bound: int) -> bool:
    return best is not None and limits.close(goal.value(best.replay), bound)


def _dealt(
    structure: Structure,
    folded: Folded,
    result: LinearResult,
    fences: Mapping[int, PositionIndex],
) -> Iterator[Candidate]:
    for choice in dealt(folded, result.values):
        made = candidate(structure, place(structure, complete(structure, choice)))
        yield _behind(structure, fences, made) if fences else made


def _behind(
    structure: Structure, fences: Mapping[int, PositionIndex], made: Candidate
) -> Candidate:
    """The placement with what is demanded before its fence stored, where that is what starts it.

    Folded, the rows that chain layer to layer leave an exception or two in a class.
    """
    units = structure.problem.units
    for _ in range(_ROUNDS):
        demand = made.replay.demand
        early = {
            u
            for u, fence in fences.items()
            if made.placement.get(units[u].name) == RECOMPUTE and demand[units[u].name] <= fence
        }
        first = {
            units[u].name: STORE
            for u in early
            if units[u].can_store and not early.intersection(structure.rebuilders[u])
        }
        if not first:
            break
        choice = complete(structure, made.placement)
        made = candidate(structure, place(structure, {**choice, **first}))
    return made
