"""Recomputation from copies is charged for the coarsest codec of the placement; no coarser one is in the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import PlacementError
from hilore_planner.solvers import (
    CompressedForm,
    PlacementProblem,
    Position,
    Unit,
    replay,
    solve,
    sweep,
)
from hilore_planner.solvers.ladder import rungs
from tests.solvers.strategies import problems

_FINE = CompressedForm("int8", 4, 1, 0, 0.01)
_COARSE = CompressedForm("int4", 2, 0, 0, 0.04)


def _unit(name: str, read_at: int, parents: tuple[str, ...] = (), **others: object) -> Unit:
    unit = Unit(
        name=name,
        kept_bytes=8,
        rebuilt_bytes=8,
        recompute_ns=5,
        keep_ns=0,
        parents=parents,
        made_at=0,
        released_at=0,
        read_at=(read_at,),
        can_recompute=bool(parents),
        inexact_risk=0.9 if parents else 0.0,
        finer_inexact_risks=(0.01,) if parents else (0.0,),
    )
    return replace(unit, **others)  # type: ignore[arg-type]


def _problem(cap_bytes: int = 16) -> PlacementProblem:
    """A value, and another that is made from it; backward reads the second first."""
    return PlacementProblem(
        units=(
            _unit("a", 3, codecs=(_FINE, _COARSE)),
            _unit("b", 2, ("a",), can_store=False),
        ),
        positions=tuple(Position(f"p{place}", 0) for place in range(4)),
        first_backward=2,
        memory_cap_bytes=cap_bytes,
        gradient_error=0.5,
        ladder=("int8", "int4"),
    )


def test_a_fine_copy_is_charged_as_such() -> None:
    problem = _problem()
    fine = replay(problem, {"a": "compress:int8", "b": "recompute"})
    coarse = replay(problem, {"a": "compress:int4", "b": "recompute"})
    assert fine.risk == pytest.approx(0.01 + 0.01)
    assert coarse.risk == pytest.approx(0.04 + 0.9)
    assert replay(problem, {"a": "store", "b": "recompute"}).risk == 0


def test_a_coarse_codec_does_not_close_recomputation_from_a_fine_one() -> None:
    problem = _problem(cap_bytes=20)
    crowded = (Position("p0", 0), Position("p1", 13), Position("p2", 0), Position("p3", 0))
    problem = replace(problem, positions=crowded)  # storing takes 21 bytes there, a copy 17
    assert solve(problem).placement == {"a": "compress:int8", "b": "recompute"}
    flat = tuple(replace(unit, finer_inexact_risks=()) for unit in problem.units)
    assert solve(replace(problem, ladder=(), units=flat)).status == "infeasible"


def test_rungs_are_the_codecs_up_to_each_coarsest_first() -> None:
    coarse, fine = rungs(_problem())
    assert [form.codec for form in coarse.units[0].codecs] == ["int8", "int4"]
    assert [form.codec for form in fine.units[0].codecs] == ["int8"]
    assert (coarse.units[1].inexact_risk, fine.units[1].inexact_risk) == (0.9, 0.01)
    assert coarse.ladder == fine.ladder == ()


def test_rungs_that_gain_nothing_are_left_out() -> None:
    problem = _problem()
    assert len(rungs(replace(problem, gradient_error=0.15))) == 1  # int4 alone is over it
    assert len(rungs(replace(problem, gradient_error=0.0))) == 1
    flat = tuple(replace(unit, finer_inexact_risks=(unit.inexact_risk,)) for unit in problem.units)
    (left,) = rungs(replace(problem, units=flat))
    assert [form.codec for form in left.units[0].codecs] == ["int8", "int4"]


@given(problems(), st.integers(0, 1))
def test_offering_more_codecs_never_costs_time(problem: PlacementProblem, place: int) -> None:
    whole = solve(problem, relative_gap=0.0)
    each = rungs(problem)
    part = solve(each[min(place, len(each) - 1)], relative_gap=0.0)
    if part.is_placed:
        assert whole.is_placed
        assert whole.objective_ns <= part.objective_ns


@given(problems())
def test_a_cap_of_a_sweep_is_solved_as_by_itself(problem: PlacementProblem) -> None:
    caps = [problem.memory_cap_bytes, problem.memory_cap_bytes + 3]
    for cap_bytes, found in zip(caps, sweep(problem, caps, relative_gap=0.0), strict=True):
        alone = solve(replace(problem, memory_cap_bytes=cap_bytes), relative_gap=0.0)
        assert (found.status, found.objective_ns) == (alone.status, alone.objective_ns)


def test_a_placement_may_be_given_that_a_finer_rung_lacks_the_codec_of() -> None:
    given_ = {"a": "compress:int4"}
    problem = replace(_problem(), units=(_problem().units[0],))
    assert solve(problem, warm_start=given_).objective_ns == 0
    with pytest.raises(PlacementError, match="int3"):
        solve(problem, warm_start={"a": "compress:int3"})
