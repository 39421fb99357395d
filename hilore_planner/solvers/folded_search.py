"""Searching the folded program: solve, deal, replay, and solve again where the replay is over the cap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hilore_planner.solvers.candidate import Candidate, candidate
from hilore_planner.solvers.deal import dealt
from hilore_planner.solvers.fold import Folded, fold, looks
from hilore_planner.solvers.linear import Column, LinearModel, LinearResult, solve_linear
from hilore_planner.solvers.problem import PositionIndex
from hilore_planner.solvers.refine import refine, write_out
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.repair import complete, place
from hilore_planner.solvers.search import Found, Goal, Limits, better, over_positions
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, STORE

_ROUNDS = 8
_PEAKS_A_ROUND = 6

_REFINED_A_ROUND = 3
"""What is refined tells layers apart: with much, little is left to fold."""

_SHARE = 0.7
"""Of the time that is left, for one round."""

_NEAR = 0.3
"""Of the gap allowed, for solutions near the relaxation's: the rest is what that is below any."""

_OWN = 2
"""Of what is dealt, the first are as the program has it."""

_GAPS = (10.0, 0.9, 0.5)
"""Of the gap allowed: while rows are missing, which they are not for long behind fences; where none is; and where
dealing loses more than the rest."""


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
        rounds: how often to refine at most; after the last it is not solved again.
    """
    alike = looks(structure)
    best, bound, known_bound = start, 0, 0
    gaps = iter(_GAPS[1:] if structure.fences else _GAPS)
    gap, has_grown = next(gaps), True
    while rounds and gap:
        if has_grown:
            folded = fold(structure, alike, refinement)
            program, hint = goal.program(folded.choices), _hint(folded, best)
        part = replace(limits.part(_SHARE), relative_gap=gap * limits.relative_gap)
        solve = _solve_near if structure.fences else _solve
        result = solve(program.model, part, hint)
        if result.outcome == "infeasible":
            return Found(best, bound, infeasible=refinement.bounds())
        if refinement.bounds():
            bound = max(bound, goal.bound(program, result))
        if not result.values:
            break
        best, nearest = _tried(goal, limits, folded, result, Found(best, bound), repairs=refines)
        if limits.out_of_time() or _is_proven(goal, limits, best, bound):
            break
        over = over_positions(nearest.replay.position_bytes, goal.limit_bytes(program, result))
        is_stuck = limits.close(bound, known_bound)
        has_grown = _grown(structure, refinement, over, nearest, refines=refines, at_once=is_stuck)
        known_bound, rounds, hint = bound, rounds - has_grown, dict(enumerate(result.values))
        if not has_grown:
            gap = 0.0 if over else next(gaps, 0.0)
    return Found(best, bound)


def _solve(model: LinearModel, limits: Limits, hint: dict[Column, float] | None) -> LinearResult:
    gap, deadline = limits.relative_gap, limits.deadline
    return solve_linear(model, relative_gap=gap, deadline=deadline, hint=hint)


def _solve_near(
    model: LinearModel, limits: Limits, hint: dict[Column, float] | None
) -> LinearResult:
    """A solution near the relaxation's where that will do, as it mostly does: the solver's first steps take long."""
    relaxed = solve_linear(model, relaxed=True, deadline=limits.deadline)
    if not relaxed.values:
        return relaxed
    near = _solve(
        model.near(relaxed.values), replace(limits, relative_gap=_NEAR * limits.relative_gap), None
    )
    gap = near.objective - relaxed.bound
    if near.values and gap <= limits.relative_gap * abs(near.objective):
        return replace(near, bound=relaxed.bound)
    return _solve(model, limits, dict(enumerate(near.values)) or hint)


def _hint(folded: Folded, best: Candidate | None) -> dict[Column, float] | None:
    """The counts of a placement's actions."""
    if best is None:
        return None
    variables = folded.choices.variables
    names = [unit.name for unit in variables.structure.problem.units]
    return {
        column: float(sum(best.placement.get(names[u]) == action for u in units))
        for first, units in folded.members.items()
        for action, column in variables.actions[first].items()
    }


def _tried(
    goal: Goal,
    limits: Limits,
    folded: Folded,
    result: LinearResult,
    known: Found,
    *,
    repairs: bool,
) -> tuple[Candidate | None, Candidate]:
    """The best of what is dealt and ``known``, and what is nearest to the program's own; the first proven ends it."""
    structure = folded.choices.variables.structure
    best, made = known.best, []
    for each in _dealt(structure, folded, result):
        made.append(each)
        best = better(goal, best, each if goal.accepts(structure, each) else None)
        if _is_proven(goal, limits, best, known.bound):
            break
    nearest = min(made[:_OWN], key=lambda each: each.replay.peak_bytes)
    if repairs and best is None and not structure.fences:
        best = goal.repair(structure, nearest)
    return best, nearest


def _grown(
    structure: Structure,
    refinement: Refinement,
    over: Sequence[PositionIndex],
    nearest: Candidate,
    *,
    refines: bool,
    at_once: bool,
) -> bool:
    """Add peak rows, behind fences exact ones; where there are none to add, or ``at_once``, refine for ``nearest``."""
    rows = over[:_PEAKS_A_ROUND]
    grown = [refinement.add_peak(k) for k in rows]
    if structure.fences:
        grown += [write_out(structure, refinement, k) for k in rows]
    if refines and (at_once or not any(grown)):
        grown += [
            refine(structure, refinement, nearest.placement, nearest.replay, k)
            for k in over[:_REFINED_A_ROUND]
        ]
    return any(grown)


def _is_proven(goal: Goal, limits: Limits, best: Candidate | None, bound: int) -> bool:
    return best is not None and limits.close(goal.value(best.replay), bound)


def _dealt(
    structure: Structure,
    folded: Folded,
    result: LinearResult,
) -> Iterator[Candidate]:
    for choice in dealt(folded, result.values):
        made = candidate(structure, place(structure, complete(structure, choice)))
        yield _behind(structure, made) if structure.fences else made


def _behind(structure: Structure, made: Candidate) -> Candidate:
    """The placement with what is demanded before its fence stored, where that is what starts it.

    Folded, the rows that chain layer to layer leave an exception or two in a class.
    """
    units = structure.problem.units
    for _ in range(_ROUNDS):
        demand = made.replay.demand
        early = {
            u
            for u, fence in structure.fences.items()
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
