"""Placements that rebuild each layer in its own turn, and the bound on all others."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis import given, settings

from hilore_planner.errors import PlacementError
from hilore_planner.solvers import PlacementProblem, Replay, replay
from hilore_planner.solvers.linear import LinearModel
from hilore_planner.solvers.local import search_local
from hilore_planner.solvers.peaks import alive_terms
from hilore_planner.solvers.refine import start_fenced, start_refinement, write_out
from hilore_planner.solvers.search import LeastTime, Limits
from hilore_planner.solvers.structure import Structure, analyse
from hilore_planner.solvers.variables import add_variables, rebuilds
from tests.solvers.oracle import placements, truth
from tests.solvers.strategies import layered_problems
from tests.solvers.test_constraints import has_columns, truly

EVER = Limits(0.0, math.inf)


def replayed(problem: PlacementProblem) -> Iterator[tuple[dict[str, str], Replay]]:
    for placement in placements(problem):
        try:
            yield placement, replay(problem, placement)
        except PlacementError:
            continue


def early(fenced: Structure, placement: dict[str, str], found: Replay) -> set[int]:
    """Units that are rebuilt before their fences."""
    names = [unit.name for unit in fenced.problem.units]
    return {
        u
        for u, fence in fenced.fences.items()
        if names[u] in placement
        and rebuilds(fenced, u, placement[names[u]])
        and found.demand[names[u]] <= fence
    }


@settings(max_examples=40)
@given(layered_problems())
def test_of_units_rebuilt_early_one_is_an_entry(problem: PlacementProblem) -> None:
    fenced = analyse(problem).fenced(0)
    for placement, found in replayed(problem):
        if has_columns(add_variables(LinearModel(), fenced, start_refinement(fenced)), placement):
            units = early(fenced, placement, found)
            assert not units or units.intersection(fenced.entries())


@settings(max_examples=40)
@given(layered_problems())
def test_behind_fences_what_is_written_out_is_exact(problem: PlacementProblem) -> None:
    fenced = analyse(problem).fenced(0)
    rows = start_fenced(fenced, start_refinement(fenced))
    for k in range(problem.first_backward, len(problem.positions)):
        write_out(fenced, rows, k)
    variables = add_variables(LinearModel(), fenced, rows)
    terms = [
        [
            term
            for u in range(len(problem.units))
            for term in alive_terms(variables, u, k, heirs=False)
        ]
        for k in range(len(problem.positions))
    ]
    has_layers = all(unit.layer is not None for unit in problem.units)
    for placement, found in replayed(problem):
        if not has_columns(variables, placement) or early(fenced, placement, found):
            continue
        values = truly(variables, placement, found)
        for at, position, alive in zip(terms, problem.positions, found.position_bytes, strict=True):
            counted = position.fixed_bytes + sum(size * values[column] for column, size in at)
            assert counted == alive if has_layers else counted <= alive


@settings(max_examples=40)
@given(layered_problems())
def test_the_bound_holds_for_every_placement(problem: PlacementProblem) -> None:
    structure = analyse(problem)
    goal = LeastTime(problem.memory_cap_bytes)
    found = search_local(goal, structure, start_refinement(structure), EVER, None)
    best = truth(problem).least_time_ns
    if best is None:
        assert found.best is None
    else:
        assert not found.infeasible
        assert found.bound <= best
        assert found.best is None or best <= found.best.replay.time_ns
