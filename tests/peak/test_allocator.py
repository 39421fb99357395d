"""The allocators' models against hand-derived counts, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import HiloreError
from hilore_planner.peak.allocator import (
    MIB,
    CachingAllocator,
    ExactAllocator,
    caching_allocator,
    rounded_bytes,
    segment_bytes,
)


@pytest.mark.parametrize(
    ("request_bytes", "expected"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB)]
)
def test_requests_are_rounded_to_512_bytes(request_bytes: int, expected: int) -> None:
    assert rounded_bytes(request_bytes) == expected


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments_follow_the_three_size_classes(size_bytes: int, expected: int) -> None:
    assert segment_bytes(size_bytes) == expected


def test_a_large_rest_is_split_off_and_a_small_one_is_counted() -> None:
    # 47 MiB: segment 48 MiB, rest 1 MiB, not above 1 MiB, so all 48 MiB count.
    # 46 MiB + 512 B: segment 48 MiB, rest just below 2 MiB, split.
    kept_whole, split = CachingAllocator(), CachingAllocator()
    assert kept_whole.allocate(47 * MIB).counted_bytes == 48 * MIB
    assert split.allocate(46 * MIB + 1).counted_bytes == 46 * MIB + 512
    assert kept_whole.reserved_bytes == split.reserved_bytes == 48 * MIB


def test_expandable_segments_split_off_every_rest() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    assert allocator.allocate(47 * MIB).counted_bytes == 47 * MIB


def test_a_freed_block_serves_a_smaller_request_whole_where_too_little_is_left() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(32 * MIB))
    again = allocator.allocate(31 * MIB + MIB // 2)
    assert again.counted_bytes == 32 * MIB
    assert allocator.allocated_bytes == allocator.reserved_bytes == 32 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (64, 32, 48)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(40 * MIB).address == blocks[2].address
    assert allocator.reserved_bytes == 144 * MIB


def test_free_neighbours_merge() -> None:
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]  # one segment of 20 MiB
    assert allocator.reserved_bytes == 20 * MIB
    for part in (parts[1], parts[3], parts[2], parts[0]):
        allocator.free(part)
    assert allocator.allocate(20 * MIB).address == parts[0].address
    assert allocator.reserved_bytes == 20 * MIB


def test_freeing_twice_is_refused() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="not an allocated block"):
        allocator.free(block)


@pytest.mark.parametrize("settings", ["", "expandable_segments:False", "backend:native"])
def test_settings_that_are_the_default_change_nothing(settings: str) -> None:
    assert not caching_allocator(settings).expandable_segments


def test_expandable_segments_are_read_from_the_settings() -> None:
    settings = "garbage_collection_threshold:0.8, expandable_segments:True"
    assert caching_allocator(settings).expandable_segments


def test_settings_that_change_the_counting_are_refused() -> None:
    with pytest.raises(HiloreError, match="max_split_size_mb is '128'"):
        caching_allocator("max_split_size_mb:128")


Program = list[tuple[int, int]]

programs: st.SearchStrategy[Program] = st.lists(
    st.tuples(st.integers(1, 60 * MIB), st.integers(0, 7)), min_size=1, max_size=60
)


@given(programs)
def test_counts_bound_the_requests_and_all_merges_back(program: Program) -> None:
    """Of each pair, the first is requested; the second picks an older allocation to free, if any."""
    exact, caching = ExactAllocator(), CachingAllocator()
    alive = []
    for request_bytes, victim in program:
        alive.append((exact.allocate(request_bytes), caching.allocate(request_bytes)))
        if victim < len(alive) - 1:
            one, other = alive.pop(victim)
            exact.free(one)
            caching.free(other)
        slack_bytes = (512 + MIB) * len(alive)
        assert exact.allocated_bytes <= caching.allocated_bytes
        assert caching.allocated_bytes <= exact.allocated_bytes + slack_bytes
        assert caching.allocated_bytes <= caching.reserved_bytes
    for one, other in alive:
        exact.free(one)
        caching.free(other)
    assert exact.allocated_bytes == caching.allocated_bytes == 0
    # Every segment is whole again: a request as large as the largest takes nothing new.
    reserved_bytes = caching.reserved_bytes
    caching.allocate(max(request_bytes for request_bytes, _ in program))
    assert caching.reserved_bytes == reserved_bytes
