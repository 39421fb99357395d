"""How much a device's allocator counts for a request.

Two models, both without torch:

- `ExactAllocator`: the host allocator as torch's profiler reports it; a request counts its own
  bytes.
- `CachingAllocator`: torch's CUDA caching allocator, as far as `max_memory_allocated` sees it. That
  statistic counts *blocks*, not requests: a request is rounded up to 512 bytes and served by the
  smallest cached block that fits; what is left of the block is split off only if it is large
  enough, else it counts as allocated too. Which blocks are cached depends on what was freed before,
  so the model keeps segments, splits and merges as the allocator does.

Source: `c10/cuda/CUDACachingAllocator.cpp` (round_size, get_allocation_size, should_split,
get_free_block, try_merge_blocks). Not modelled: streams other than the current one, garbage
collection, `max_split_size_mb`, power-of-two rounding, and what happens when the device is full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Protocol

from hilore_planner.errors import HiloreError

KIB = 1024
MIB = 1024 * KIB

ROUNDING_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_SEGMENT_LIMIT_BYTES = 10 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB


class Allocation(Protocol):
    """What an allocator hands out; `counted_bytes` is what its statistics count for it."""

    @property
    def counted_bytes(self) -> int:
        """Bytes counted for it while it is allocated."""


class Allocator(Protocol):
    """Serves requests and keeps the statistics a user would read."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes counted for everything now allocated."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the device, cached ones included."""

    def allocate(self, request_bytes: int) -> Allocation:
        """Serve a request of at least one byte."""

    def free(self, allocation: Allocation) -> None:
        """Give back what `allocate` returned, once."""


@dataclass(slots=True, eq=False)
class ExactAllocation:
    """A request served as it is."""

    counted_bytes: int


@dataclass(slots=True)
class ExactAllocator:
    """Counts every request with its own bytes and caches nothing."""

    allocated_bytes: int = 0

    @property
    def reserved_bytes(self) -> int:
        """Nothing is cached: just what is allocated."""
        return self.allocated_bytes

    def allocate(self, request_bytes: int) -> ExactAllocation:
        """Count the request."""
        self.allocated_bytes += request_bytes
        return ExactAllocation(request_bytes)

    def free(self, allocation: Allocation) -> None:
        """Uncount the request."""
        self.allocated_bytes -= allocation.counted_bytes


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment; neighbours are linked so that free ones merge."""

    size_bytes: int
    address: int
    is_small: bool
    is_free: bool = False
    previous: Block | None = None
    next: Block | None = None

    @property
    def counted_bytes(self) -> int:
        """All of the block, whatever the request was."""
        return self.size_bytes

    @property
    def sort_key(self) -> tuple[int, int]:
        """Smaller blocks first, then lower addresses."""
        return (self.size_bytes, self.address)


@dataclass(slots=True)
class _Pool:
    """Free blocks ordered by size, then address."""

    keys: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[tuple[int, int], Block] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        insort(self.keys, block.sort_key)
        self.blocks[block.sort_key] = block

    def remove(self, block: Block) -> None:
        del self.keys[bisect_left(self.keys, block.sort_key)]
        del self.blocks[block.sort_key]

    def best_fit(self, size_bytes: int) -> Block | None:
        position = bisect_left(self.keys, (size_bytes, -1))
        return self.blocks[self.keys[position]] if position < len(self.keys) else None


def rounded_bytes(request_bytes: int) -> int:
    """The smallest block that may serve a request."""
    return -(-request_bytes // ROUNDING_BYTES) * ROUNDING_BYTES


def segment_bytes(size_bytes: int) -> int:
    """What is taken from the device for a rounded request no cached block fits."""
    if size_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < LARGE_SEGMENT_LIMIT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


@dataclass(slots=True)
class CachingAllocator:
    """The CUDA caching allocator's counting, from an empty cache on.

    Attributes:
        expandable_segments: as `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: every rest of at
            least 512 bytes is split off. Segment growth is then not modelled (`reserved_bytes` is a
            sum of segments all the same).
    """

    expandable_segments: bool = False
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    _small: _Pool = field(default_factory=_Pool)
    _large: _Pool = field(default_factory=_Pool)

    def allocate(self, request_bytes: int) -> Block:
        """Serve a request from the best-fitting free block, or from a new segment."""
        size_bytes = rounded_bytes(request_bytes)
        pool = self._small if size_bytes <= SMALL_REQUEST_BYTES else self._large
        block = pool.best_fit(size_bytes)
        if block is None:
            block = self._new_segment(size_bytes, pool is self._small)
        else:
            pool.remove(block)
        self._split(block, size_bytes, pool)
        block.is_free = False
        self.allocated_bytes += block.size_bytes
        return block

    def free(self, allocation: Allocation) -> None:
        """Cache the block, merged with its free neighbours."""
        if not isinstance(allocation, Block) or allocation.is_free:
            raise ValueError(f"not an allocated block of this allocator: {allocation!r}")
        block = allocation
        self.allocated_bytes -= block.size_bytes
        pool = self._small if block.is_small else self._large
        block.is_free = True
        pool.add(self._merge_neighbours(block, pool))

    def _new_segment(self, size_bytes: int, is_small: bool) -> Block:
        segment = Block(segment_bytes(size_bytes), self.reserved_bytes, is_small)
        self.reserved_bytes += segment.size_bytes
        return segment

    def _split(self, block: Block, size_bytes: int, pool: _Pool) -> None:
        rest_bytes = block.size_bytes - size_bytes
        if block.is_small or self.expandable_segments:
            if rest_bytes < ROUNDING_BYTES:
                return
        elif rest_bytes <= SMALL_REQUEST_BYTES:
            return
        rest = Block(
            rest_bytes, block.address + size_bytes, block.is_small, True, block, block.next
        )
        if block.next is not None:
            block.next.previous = rest
        block.next = rest
        block.size_bytes = size_bytes
        pool.add(rest)

    def _merge_neighbours(self, block: Block, pool: _Pool) -> Block:
        following = block.next
        if following is not None and following.is_free:
            pool.remove(following)
            block = _joined(block, following)
        preceding = block.previous
        if preceding is not None and preceding.is_free:
            pool.remove(preceding)
            block = _joined(preceding, block)
        return block


_UNMODELLED_SETTINGS = ("backend", "max_split_size_mb", "roundup_power2_divisions")


def caching_allocator(settings: str) -> CachingAllocator:
    """The model for what `PYTORCH_CUDA_ALLOC_CONF` says, as `name:value,name:value`.

    Raises:
        HiloreError: a setting that changes what is counted, and is not modelled.
    """
    values = dict(part.strip().partition(":")[::2] for part in settings.split(",") if part.strip())
    for name in _UNMODELLED_SETTINGS:
        if name in values and values[name] != "native":
            raise HiloreError(
                f"the CUDA allocator's setting {name} is {values[name]!r}; predictions need it unset"
            )
    return CachingAllocator(values.get("expandable_segments", "False").strip() == "True")


def _joined(first: Block, second: Block) -> Block:
    first.size_bytes += second.size_bytes
    first.next = second.next
    if second.next is not None:
        second.next.previous = first
    return first
