"""The folded program: its bound, and what is dealt from it."""

from __future__ import annotations

import dataclasses
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.solvers import PlacementProblem, replay, solve
from hilore_planner.solvers.deal import dealt
from hilore_planner.solvers.fold import Folded, fold, looks
from hilore_planner.solvers.linear import solve_linear
from hilore_planner.solvers.program import Program, time_program, whole
from hilore_planner.solvers.refine import refine
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.repair import complete, place
from hilore_planner.solvers.structure import analyse
from tests.solvers.layered import GIB, Shape, transformer
from tests.solvers.oracle import truth
from tests.solvers.strategies import layered_problems, problems

AMPLE = 600.0


def folded_at(problem: PlacementProblem, refinement: Refinement) -> Folded:
    structure = analyse(problem)
    return fold(structure, looks(structure), refinement)


def program_of(folded: Folded, problem: PlacementProblem) -> Program:
    return time_program(folded.choices, problem.memory_cap_bytes)


def refinement_of(problem: PlacementProblem, data: st.DataObject) -> Refinement:
    """Some peak rows, and what some placements' replays need there."""
    positions = st.integers(0, len(problem.positions) - 1)
    refinement = Refinement(peaks=sorted(data.draw(st.sets(positions, max_size=4))))
    structure = analyse(problem)
    for _ in range(data.draw(st.integers(0, 2))):
        stored = {
            u.name: "store" for u in problem.units if u.can_store and data.draw(st.booleans())
        }
        placement = place(structure, complete(structure, stored))
        found = replay(problem, placement)
        refine(structure, refinement, placement, found, data.draw(positions))
    return refinement


@settings(max_examples=150)
@given(st.one_of(problems(), layered_problems()), st.data())
def test_it_is_below_the_oracle(problem: PlacementProblem, data: st.DataObject) -> None:
    folded = folded_at(problem, refinement_of(problem, data))
    program = program_of(folded, problem)
    result = solve_linear(program.model)
    best = truth(problem).least_time_ns
    if best is not None:
        assert result.outcome == "optimal"
        assert result.bound * program.unit_ns <= best + 1e-6


@given(problems(), st.data())
def test_without_equal_units_it_is_the_program_itself(
    problem: PlacementProblem, data: st.DataObject
) -> None:
    units = tuple(dataclasses.replace(unit, kind="") for unit in problem.units)
    problem = dataclasses.replace(problem, units=units)
    refinement = refinement_of(problem, data)
    folded = solve_linear(program_of(folded_at(problem, refinement), problem).model)
    choices = whole(analyse(problem), refinement)
    result = solve_linear(time_program(choices, problem.memory_cap_bytes).model)
    assert folded.outcome == result.outcome
    assert folded.outcome == "infeasible" or abs(folded.objective - result.objective) < 1e-6


@given(layered_problems())
def test_what_is_dealt_has_the_counts(problem: PlacementProblem) -> None:
    structure = analyse(problem)
    folded = folded_at(problem, Refinement(peaks=[problem.first_backward]))
    result = solve_linear(program_of(folded, problem).model)
    actions = folded.choices.variables.actions
    counts: Counter[tuple[str, str]] = Counter()
    for first in folded.members if result.values else ():
        for action, column in actions[first].items():
            kind = problem.units[first].kind
            counts[kind, action] += round(result.values[column])
    for choice in dealt(folded, result.values) if result.values else ():
        replay(problem, place(structure, complete(structure, choice)))
        given_out = Counter(
            (unit.kind, choice[unit.name]) for unit in problem.units if unit.name in choice
        )
        assert given_out == +counts


def test_it_is_no_larger_for_more_layers() -> None:
    sizes = []
    for layers in (4, 12):
        problem = transformer(
            Shape(layers=layers), cap_bytes=8 * GIB, codecs=True, gradient_error=0.1
        )
        folded = folded_at(problem, Refinement(peaks=[problem.first_backward]))
        model = program_of(folded, problem).model
        sizes.append((len(model.column_names), len(model.row_names)))
    assert sizes[0] == sizes[1]


def test_lossy_copies_over_equal_layers_are_solved_to_the_gap() -> None:
    problem = transformer(
        Shape(layers=8), cap_bytes=35 * GIB // 2, codecs=True, gradient_error=6.5e-5**0.5
    )
    found = solve(problem, time_limit_seconds=AMPLE)
    assert found.status == "optimal"
    assert 0.0 < found.risk <= 6.5e-5
