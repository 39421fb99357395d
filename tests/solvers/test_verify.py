"""The replay against figures worked out by hand."""

from __future__ import annotations

import pytest

from hilore_planner.errors import PlacementError
from hilore_planner.solvers import CompressedForm, PlacementProblem, Position, Unit, replay

INT8 = CompressedForm("int8", kept_bytes=40, encode_ns=3, decode_ns=4, risk=0.25)
BITS = CompressedForm("bits", kept_bytes=5, encode_ns=1, decode_ns=1, risk=0.0)


def unit(
    name: str,
    read_at: tuple[int, ...] = (),
    parents: tuple[str, ...] = (),
    *,
    kept_bytes: int = 80,
    rebuilt_bytes: int = 80,
    made_at: int = 0,
    released_at: int = 1,
    can_store: bool = True,
    can_recompute: bool = True,
    inexact_risk: float = 0.0,
) -> Unit:
    return Unit(
        name=name,
        kept_bytes=kept_bytes,
        rebuilt_bytes=rebuilt_bytes,
        recompute_ns=10,
        keep_ns=2,
        parents=parents,
        made_at=made_at,
        released_at=released_at,
        read_at=read_at,
        can_store=can_store,
        can_recompute=can_recompute,
        codecs=(INT8, BITS),
        inexact_risk=inexact_risk,
    )


def problem(*units: Unit) -> PlacementProblem:
    """Forward positions 0-2, backward 3-7, position k holding k bytes of its own."""
    positions = tuple(Position(f"p{k}", fixed_bytes=k) for k in range(8))
    return PlacementProblem(units, positions, first_backward=3, memory_cap_bytes=1000)


def moving(problem: PlacementProblem, placement: dict[str, str]) -> list[int]:
    """Bytes at each position without the fixed ones."""
    return [size - k for k, size in enumerate(replay(problem, placement).position_bytes)]


def test_store_is_held_from_its_release_to_its_last_read() -> None:
    assert moving(problem(unit("a", (4, 6))), {"a": "store"}) == [0, 0, 80, 80, 80, 80, 80, 0]


def test_compress_swaps_the_copy_for_the_value_at_demand() -> None:
    # The copy from made_at = 0 to demand = 4, the value from 4 to 6.
    found = moving(problem(unit("a", (4, 6))), {"a": "compress:int8"})
    assert found == [40, 40, 40, 40, 120, 80, 80, 0]


def test_compress_keeps_the_copy_to_the_end_where_nothing_is_written_out() -> None:
    found = moving(problem(unit("a", (4, 6), rebuilt_bytes=0)), {"a": "compress:int8"})
    assert found == [40, 40, 40, 40, 40, 40, 40, 0]


def test_recompute_is_held_from_demand_to_its_last_read() -> None:
    assert moving(problem(unit("a", (4, 6))), {"a": "recompute"}) == [0, 0, 0, 0, 80, 80, 80, 0]


def test_a_recomputed_reader_demands_its_parent_early() -> None:
    # b is read at 4, so a is rebuilt at 4 and stays for its own read at 6.
    chain = problem(unit("a", (6,)), unit("b", (4,), ("a",), rebuilt_bytes=1))
    found = replay(chain, {"a": "recompute", "b": "recompute"})
    assert found.demand == {"a": 4, "b": 4}
    assert found.last == {"a": 6, "b": 4}
    assert [size - k for k, size in enumerate(found.position_bytes)] == [0, 0, 0, 0, 81, 80, 80, 0]


def test_early_demand_passes_through_recomputed_units_only() -> None:
    chain = problem(unit("a", (7,)), unit("b", (6,), ("a",)), unit("c", (4,), ("b",)))
    rebuilt = replay(chain, dict.fromkeys("abc", "recompute"))
    assert rebuilt.demand == {"a": 4, "b": 4, "c": 4}
    stopped = replay(chain, {"a": "recompute", "b": "store", "c": "recompute"})
    assert stopped.demand == {"a": 7, "b": 4, "c": 4}


def test_a_recomputed_reader_holds_its_parent_late() -> None:
    # a's own last read is 4; c, rebuilt at 6, reads it then.
    late = problem(unit("a", (4,)), unit("c", (6,), ("a",), rebuilt_bytes=0))
    assert moving(late, {"a": "store", "c": "recompute"}) == [0, 0, 80, 80, 80, 80, 80, 0]
    assert replay(late, {"a": "store", "c": "store"}).last["a"] == 4


def test_an_interior_unit_lives_while_its_readers_are_rebuilt() -> None:
    inner = problem(unit("a"), unit("b", (4,), ("a",)), unit("c", (6,), ("a",)))
    placement = {"a": "recompute", "b": "recompute", "c": "store"}
    found = replay(inner, placement)
    assert (found.demand["a"], found.last["a"]) == (4, 4)
    assert replay(inner, {**placement, "c": "recompute"}).last["a"] == 6


def test_totals_and_peak() -> None:
    two = problem(unit("a", (4,)), unit("b", (6,)), unit("c", (5,)))
    found = replay(two, {"a": "store", "b": "compress:int8", "c": "recompute"})
    assert found.saved_bytes == 80 + 40
    assert found.time_ns == 2 + 7 + 10
    # Position 5: fixed 5, b's copy 40, c 80. Position 6: fixed 6, copy and value of b.
    assert found.position_bytes[4:7] == (4 + 80 + 40, 5 + 40 + 80, 6 + 40 + 80)
    assert (found.peak_bytes, found.peak_position) == (126, 6)
    assert found.owners(5) == (("c", 80), ("b", 40))
    assert found.owners(6) == (("b", 120),)


def test_risk_adds_forms_and_inexact_recomputation_once() -> None:
    chain = problem(
        unit("a", (7,)),
        unit("b", (6,), ("a",), inexact_risk=0.5),
        unit("c", (5,), ("a", "b"), inexact_risk=0.125),
    )
    rebuilt = {"b": "recompute", "c": "recompute"}
    assert replay(chain, {"a": "compress:int8", **rebuilt}).risk == 0.25 + 0.5 + 0.125
    assert replay(chain, {"a": "compress:int8", "b": "store", "c": "store"}).risk == 0.25
    assert replay(chain, {"a": "compress:bits", **rebuilt}).risk == 0.0


@pytest.mark.parametrize(
    ("placement", "named", "reason"),
    [
        ({"a": "store"}, "b", "backward"),
        ({"b": "recompute"}, "a", "'b' reads it at position 4"),
        ({"a": "store", "b": "store"}, "a", "nothing in backward needs it"),
        ({"a": "store", "b": "recompute", "x": "store"}, "x", "no such unit"),
        ({"a": "compress:fp8", "b": "recompute"}, "a", "compress:int8"),
        ({"a": "spill", "b": "recompute"}, "a", "spill"),
    ],
)
def test_invalid_placements_name_the_unit(
    placement: dict[str, str], named: str, reason: str
) -> None:
    pair = problem(unit("a"), unit("b", (4,), ("a",)))
    with pytest.raises(PlacementError, match=reason) as caught:
        replay(pair, placement)
    assert caught.value.unit == named


def test_actions_that_are_not_open_are_refused() -> None:
    fixed = problem(unit("a", (4,), can_store=False), unit("b", (4,), can_recompute=False))
    with pytest.raises(PlacementError, match="'store' is not open"):
        replay(fixed, {"a": "store", "b": "store"})
    with pytest.raises(PlacementError, match="'recompute' is not open"):
        replay(fixed, {"a": "recompute", "b": "recompute"})
