"""Small problems that only one family of rows keeps the program from cheating on."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.errors import PlacementError
from hilore_planner.solvers import (
    CompressedForm,
    PlacementProblem,
    Position,
    Solution,
    Unit,
    replay,
    solve,
)
from hilore_planner.solvers.linear import LinearModel
from hilore_planner.solvers.peaks import alive_terms
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.structure import Structure, analyse
from hilore_planner.solvers.variables import Variables, add_variables, rebuilds
from hilore_planner.solvers.verify import Replay
from tests.solvers.oracle import placements
from tests.solvers.strategies import interior_problems, layered_problems, problems

ROUNDING = 1e-6
"""Of a byte: sums of floats."""


def unit(
    name: str,
    kept_bytes: int,
    recompute_ns: int,
    parents: tuple[str, ...] = (),
    read_at: tuple[int, ...] = (),
    *,
    codecs: tuple[CompressedForm, ...] = (),
    inexact_risk: float = 0.0,
) -> Unit:
    """Made at 0, released at once, rebuilt in registers."""
    return Unit(
        name=name,
        kept_bytes=kept_bytes,
        rebuilt_bytes=0,
        recompute_ns=recompute_ns,
        keep_ns=0,
        parents=parents,
        made_at=0,
        released_at=0,
        read_at=read_at,
        codecs=codecs,
        inexact_risk=inexact_risk,
    )


def solved(units: list[Unit], fixed_bytes: list[int], cap: int, error: float = 0.0) -> Solution:
    """One forward position, then backward."""
    positions = tuple(Position(f"p{k}", size) for k, size in enumerate(fixed_bytes))
    problem = PlacementProblem(tuple(units), positions, 1, cap, error)
    found = solve(problem, relative_gap=0.0, time_limit_seconds=600.0)
    assert found.status == "optimal"
    assert replay(problem, found.placement).peak_bytes <= cap
    return found


def test_parents_are_at_hand() -> None:
    # b costs 1 to rebuild from a, which then costs 5 to rebuild or 10 bytes; b itself 10 bytes.
    found = solved([unit("a", 10, 5), unit("b", 10, 1, ("a",), (1,))], [0, 0], cap=9)
    assert found.objective_ns == 6
    assert found.placement == {"a": "recompute", "b": "recompute"}


def test_a_peak_between_demand_and_last_read_counts() -> None:
    # Kept from forward to position 3, a passes position 2 where 5 bytes are fixed.
    found = solved([unit("a", 10, 7, (), (3,))], [0, 0, 5, 0], cap=14)
    assert found.objective_ns == 7


def test_demand_is_not_pretended_earlier_than_a_reader_has_it() -> None:
    # u, kept for rebuilding v at 3, passes position 2 and does not fit there. Were v demanded at 1,
    # u would be gone by 2: but then c, v's reader, must be rebuilt for 500, not kept.
    units = [
        unit("u", 10, 100),
        unit("v", 10, 1, ("u",), (3,)),
        unit("c", 1, 500, ("v",), (1,)),
    ]
    found = solved(units, [0, 0, 5, 0], cap=14)
    assert found.objective_ns == 101
    assert found.placement == {"u": "recompute", "v": "recompute", "c": "store"}


def test_what_nothing_needs_is_not_rebuilt_to_pretend_a_demand() -> None:
    # As above, but v's reader c is interior and free to rebuild; only e, dear to rebuild, needs it.
    units = [
        unit("u", 10, 100),
        unit("v", 10, 1, ("u",), (3,)),
        unit("c", 1, 0, ("v",)),
        unit("e", 1, 500, ("c",), (1,)),
    ]
    found = solved(units, [0, 0, 5, 0], cap=14)
    assert found.objective_ns == 101
    assert found.placement == {"u": "recompute", "v": "recompute", "e": "store"}


def test_rebuilding_early_frees_what_it_is_rebuilt_from() -> None:
    # With c cheap, its early demand of v is the way: u is gone by position 2.
    units = [
        unit("u", 10, 100),
        unit("v", 10, 1, ("u",), (3,)),
        unit("c", 1, 20, ("v",), (1,)),
    ]
    found = solved(units, [0, 0, 5, 0], cap=14)
    assert found.objective_ns == 21
    assert found.placement == {"u": "store", "v": "recompute", "c": "recompute"}


def test_rebuilding_from_something_inexact_is_charged() -> None:
    # Two routes under 5 bytes: a compressed and b rebuilt from it, at risk 0.25 + 0.5; or both
    # rebuilt, for 51.
    lossy = CompressedForm("int8", kept_bytes=1, encode_ns=0, decode_ns=0, risk=0.25)
    cases = ((0.5, 0.8, 51), (0.5, 0.9, 1), (2.0, 0.8, 51), (1e30, 0.8, 51))
    for inexact_risk, error, time_ns in cases:
        units = [
            unit("a", 10, 50, codecs=(lossy,)),
            unit("b", 10, 1, ("a",), (1,), inexact_risk=inexact_risk),
        ]
        assert solved(units, [0, 0], cap=5, error=error).objective_ns == time_ns


def test_risk_may_use_the_budget_up() -> None:
    lossy = CompressedForm("int8", kept_bytes=1, encode_ns=0, decode_ns=0, risk=0.125)
    units = [unit(name, 10, 50, (), (1,), codecs=(lossy,)) for name in "abc"]
    found = solved(units, [0, 0], cap=5, error=0.5)  # A budget of 0.25: two of three.
    assert found.risk == 0.25
    assert found.objective_ns == 50


def test_inexactness_passes_on() -> None:
    # c is rebuilt from b, which is rebuilt from the compressed a.
    lossy = CompressedForm("int8", kept_bytes=1, encode_ns=0, decode_ns=0, risk=0.25)
    units = [
        unit("a", 10, 50, codecs=(lossy,)),
        unit("b", 10, 1, ("a",)),
        unit("c", 10, 1, ("b",), (1,), inexact_risk=0.5),
    ]
    assert solved(units, [0, 0], cap=5, error=0.8).objective_ns == 52
    assert solved(units, [0, 0], cap=5, error=0.9).objective_ns == 2


def test_forms_that_another_beats_are_left_out() -> None:
    sizes = {"best": (4, 2, 0.1), "same": (4, 2, 0.1), "slower": (4, 3, 0.1), "larger": (5, 2, 0.2)}
    sizes |= {"smaller": (3, 9, 0.1), "exact": (8, 2, 0.0), "faster": (4, 1, 0.3)}
    forms = tuple(
        CompressedForm(name, size, time_ns, 0, risk)
        for name, (size, time_ns, risk) in sizes.items()
    )
    one, other = unit("a", 10, 50, codecs=forms), unit("b", 10, 50, codecs=(*forms,))
    problem = PlacementProblem((one, other), (Position("p0", 0),), 0, 10, gradient_error=1.0)
    kept, shared = analyse(problem).forms
    assert [form.codec for form in kept] == ["best", "smaller", "exact", "faster"]
    assert kept is shared


@settings(max_examples=250)
@given(st.one_of(problems(most_units=5), layered_problems(), interior_problems()), st.data())
def test_no_more_bytes_are_counted_than_are_alive(
    problem: PlacementProblem, data: st.DataObject
) -> None:
    structure = analyse(problem)
    variables = add_variables(LinearModel(), structure, refinements(structure, data))
    heirs, units = data.draw(st.booleans()), range(len(problem.units))
    terms = [
        [term for u in units for term in alive_terms(variables, u, k, heirs=heirs)]
        for k in range(len(problem.positions))
    ]
    for placement in placements(problem):
        if not has_columns(variables, placement):
            continue
        try:
            found = replay(problem, placement)
        except PlacementError:
            continue
        values = truly(variables, placement, found)
        for at, position, alive in zip(terms, problem.positions, found.position_bytes, strict=True):
            counted = sum(size * values[column] for column, size in at)
            assert counted <= alive - position.fixed_bytes + ROUNDING


def refinements(structure: Structure, data: st.DataObject) -> Refinement:
    """None, or breaks and tails wherever there may be some."""
    refinement = Refinement()
    if data.draw(st.booleans()):
        return refinement
    for u in range(len(structure.parents)):
        for k in range(structure.earliest[u], structure.latest[u]):
            if data.draw(st.booleans()):
                refinement.add_break(u, k)
        for k in range(structure.surely_last[u] + 1, structure.possibly_last[u] + 1):
            if data.draw(st.booleans()):
                refinement.add_tail(u, k)
    return refinement


def has_columns(variables: Variables, placement: dict[str, str]) -> bool:
    """Whether it uses no form that another beats."""
    units = variables.structure.problem.units
    return all(
        placement.get(unit.name) in (None, *actions)
        for unit, actions in zip(units, variables.actions, strict=True)
    )


def truly(variables: Variables, placement: dict[str, str], found: Replay) -> dict[int, float]:
    """What the columns say, of a placement that was replayed; the least that they may."""
    structure = variables.structure
    names = [unit.name for unit in structure.problem.units]
    values = {
        column: float(placement.get(name) == action)
        for name, actions in zip(names, variables.actions, strict=True)
        for action, column in actions.items()
    }
    for (u, action, k), column in variables.by.items():
        values[column] = float(placement.get(names[u]) == action and found.demand[names[u]] <= k)
    for (u, action, k), column in variables.tail.items():
        if placement.get(names[u]) == action:
            is_made = not rebuilds(structure, u, action) or found.demand[names[u]] <= k
            values[column] = float(is_made and k <= found.last[names[u]])
        else:
            values[column] = 0.0
    for u, heirs in enumerate(structure.heirs):
        for heir in heirs:
            if (u, heir.units) in variables.heir:
                least = (
                    sum(weight * values[column] for column, weight in variables.heir_terms(u, v))
                    for v in heir.units
                )
                values[variables.heir[u, heir.units]] = max(0.0, *least)
    return values


def test_an_interior_unit_that_is_kept_is_counted_until_a_reader_takes_its_place() -> None:
    # c, rebuilt by position 3, is rebuilt from b. If b is kept for that, its 10 bytes or c's 6 are
    # alive at 2: rebuilding e for its early read may have rebuilt c by 1.
    units = [
        unit("b", 10, 1),
        dataclasses.replace(unit("c", 10, 1, ("b",), (3,)), rebuilt_bytes=6),
        unit("e", 1, 1, ("c",), (1,)),
    ]
    problem = PlacementProblem(tuple(units), tuple(Position("", 0) for _ in range(4)), 1, 0)
    structure = analyse(problem)
    variables = add_variables(LinearModel(), structure, Refinement())
    store, recompute = variables.actions[0].values()
    assert (structure.earliest[0], structure.latest[0]) == (1, 3)
    assert [alive_terms(variables, 0, k, heirs=True) for k in range(1, 4)] == [
        [(store, 10.0)],
        [(variables.actions[1]["recompute"], 6.0), (recompute, -6.0)],
        [],
    ]


def test_a_unit_is_counted_for_what_is_surely_recomputed_from_it() -> None:
    # b is read by d alone in the end: by way of c, or directly. Both ways d takes its place.
    units = [
        unit("b", 10, 1),
        unit("c", 10, 1, ("b",)),
        dataclasses.replace(unit("d", 10, 1, ("b", "c"), (3,)), rebuilt_bytes=8),
    ]
    problem = PlacementProblem(tuple(units), tuple(Position("", 0) for _ in range(4)), 1, 0)
    heirs = analyse(problem).heirs
    assert [(heir.units, heir.until) for heir in heirs[0]] == [((2,), 2)]
    # c would be made from b again: what they have in common is b's.
    assert [heir.size_bytes for heir in (*heirs[0], *heirs[1])] == [4, 4]


def test_a_unit_is_counted_whole_for_whichever_reader_is_recomputed_from_it() -> None:
    units = [
        unit("b", 10, 1),
        dataclasses.replace(unit("c", 20, 1, ("b",), (3,)), rebuilt_bytes=20),
        dataclasses.replace(unit("d", 20, 1, ("b",), (3,)), rebuilt_bytes=20),
    ]
    problem = PlacementProblem(tuple(units), tuple(Position("", 0) for _ in range(4)), 1, 0)
    (heir,) = analyse(problem).heirs[0]
    assert (set(heir.units), heir.size_bytes, heir.until) == ({1, 2}, 10, 2)
