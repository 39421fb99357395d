"""Placements that rebuild each layer in its own turn, and a bound on all others.

Most of the best are such. Until a layer's turn its copies are alive and nothing else of it, so the folded program has
all layers exactly but the few whose turn a peak lies in, and these are written out.

Every other placement rebuilds some unit ahead of its layer's turn, first of all one that a layer above is recomputed
from: one of ``Structure.entries``. A row that says so bounds them. They recompute more and hold more for longer, so
that the relaxation is mostly enough to see that they take more time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hilore_planner.solvers.candidate import Candidate
from hilore_planner.solvers.fold import fold, looks
from hilore_planner.solvers.folded_search import search_folded
from hilore_planner.solvers.linear import LinearResult, solve_linear
from hilore_planner.solvers.program import Program
from hilore_planner.solvers.refine import start_fenced
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.search import Found, Goal, Limits
from hilore_planner.solvers.structure import Structure

_SHARE = 0.8
"""Of the time that is left, for placements that rebuild each layer in its turn."""

_OTHERS_SHARE = 0.8
"""Likewise for the bound on all others."""

_ROUNDS = 6

_SOON_SHARE = 0.4
_SOON_GAP = 0.01


def soon_local(
    goal: Goal, structure: Structure, refinement: Refinement, limits: Limits
) -> Candidate | None:
    """A placement that rebuilds each layer in its own turn, of whatever quality; arguments as for the search."""
    fenced = structure.fenced(0)
    part = replace(limits.part(_SOON_SHARE), relative_gap=_SOON_GAP)
    rows = start_fenced(fenced, refinement)
    return search_folded(goal, fenced, rows, part, None, refines=True, rounds=_ROUNDS).best


def search_local(
    goal: Goal,
    structure: Structure,
    refinement: Refinement,
    limits: Limits,
    start: Candidate | None,
) -> Found:
    """The best placement that rebuilds each layer in its own turn, or ``start``, and a bound on any.

    Args:
        goal: what is minimised.
        structure: the problem's structure.
        refinement: whose peak rows are written out; it gets those that are found to be needed.
        limits: when to stop.
        start: a placement that may be returned, if there is one.
    """
    fenced = structure.fenced(0)
    rows = start_fenced(fenced, refinement)
    part = limits.part(_SHARE)
    found = search_folded(goal, fenced, rows, part, start, refines=True, rounds=_ROUNDS)
    bound = math.inf if found.infeasible else found.bound
    if bound > 0:
        bound = min(bound, _bound_on_others(goal, fenced, structure, rows, limits, found.best))
    if bound == math.inf:
        return Found(found.best, 0, infeasible=True)
    return Found(found.best, int(bound))


def _bound_on_others(
    goal: Goal,
    fenced: Structure,
    structure: Structure,
    refinement: Refinement,
    limits: Limits,
    best: Candidate | None,
) -> float:
    """On placements that rebuild a unit before its fence."""
    wide = refinement.copy()
    for u, fence in fenced.fences.items():
        wide.add_break(u, fence)
        if structure.surely_last[u] <= fence < structure.possibly_last[u]:
            wide.add_tail(u, fence + 1)
    choices = fold(structure, looks(structure), wide).choices
    early = {
        column
        for u in fenced.entries()
        for action in choices.variables.actions[choices.variables.members(u)[0]]
        if (column := choices.variables.possibly(u, action, fenced.fences[u])) is not None
    }
    program = goal.program(choices)
    program.model.row("early[]", [(column, 1.0) for column in early], lower=1.0)
    relaxed = _bound(goal, program, solve_linear(program.model, relaxed=True))
    if best is None or relaxed == math.inf or limits.close(goal.value(best.replay), int(relaxed)):
        return relaxed
    deadline = limits.part(_OTHERS_SHARE).deadline
    result = solve_linear(program.model, relative_gap=limits.relative_gap, deadline=deadline)
    return max(relaxed, _bound(goal, program, result))


def _bound(goal: Goal, program: Program, result: LinearResult) -> float:
    return math.inf if result.outcome == "infeasible" else goal.bound(program, result)
