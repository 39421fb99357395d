from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import OptionError
from hilore_planner.grpo.microbatches import Microbatch, pack_microbatches, pad_microbatches

lengths_st = st.lists(st.integers(1, 40), max_size=9)
MAX = 64


def tokens(microbatches: tuple[Microbatch, ...]) -> int:
    return sum(m.height * m.width for m in microbatches)


@given(lengths_st, st.integers(1, 3), st.sampled_from([1, 8]))
def test_padded(lengths: list[int], shapes: int, multiple: int) -> None:
    found = pad_microbatches(lengths, max_tokens=MAX, shapes=shapes, multiple=multiple)
    members = [i for m in found for i in m.sequences]
    assert sorted(members) == list(range(len(lengths)))
    assert [lengths[i] for i in members] == sorted(lengths, reverse=True)
    assert len({(m.height, m.width) for m in found}) <= shapes
    for m in found:
        assert m.width % multiple == 0
        assert m.height * m.width <= MAX
        assert 1 <= len(m.sequences) <= m.height
        assert all(lengths[i] <= m.width for i in m.sequences)
    assert tokens(found) == fewest_tokens(sorted(lengths, reverse=True), shapes, multiple)


def fewest_tokens(lengths: list[int], shapes: int, multiple: int) -> int:
    """By trying every cut of the sorted lengths."""
    if not lengths:
        return 0
    if shapes == 0:
        return 10**9
    width = math.ceil(lengths[0] / multiple) * multiple
    best = 10**9
    for stop in range(1, len(lengths) + 1):
        number = math.ceil(stop / (MAX // width))
        run = number * math.ceil(stop / number) * width
        best = min(best, run + fewest_tokens(lengths[stop:], shapes - 1, multiple))
    return best


@given(lengths_st, st.sampled_from([1, 8]))
def test_packed(lengths: list[int], multiple: int) -> None:
    found = pack_microbatches(lengths, max_tokens=MAX, multiple=multiple)
    assert sorted(i for m in found for i in m.sequences) == list(range(len(lengths)))
    assert len({(m.height, m.width) for m in found}) <= 1
    for m in found:
        filled = sum(lengths[i] for i in m.sequences)
        assert filled <= m.width <= MAX
        assert m.width % multiple == 0
    if found:  # balanced: no two differ by more than the longest sequence
        loads = [sum(lengths[i] for i in m.sequences) for m in found]
        assert max(loads) - min(loads) <= max(lengths)


def test_an_outlier_gets_a_shape_of_its_own() -> None:
    found = pad_microbatches([5, 64, 4, 4, 5, 4, 5, 5], max_tokens=64, shapes=2)
    assert [(m.height, m.width, len(m.sequences)) for m in found] == [(1, 64, 1), (7, 5, 7)]


@pytest.mark.parametrize("make", [pad_microbatches, pack_microbatches])
def test_a_sequence_that_does_not_fit(make: object) -> None:
    assert callable(make)
    with pytest.raises(OptionError, match=r"max_tokens is 62; .* accepted: >= 64"):
        make([3, 60], max_tokens=62, multiple=8)
    assert make([], max_tokens=8) == ()
