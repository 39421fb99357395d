"""What the device does around the work that is timed: the update that is planned, over and over.

How fast a GPU's clock runs depends on the power that it draws, averaged over some tenths of a second. Work that is
timed on a device at rest is up to a fifth faster than within a long row of updates. So an update's kernels of its own
are run on made-up inputs, as they stand in its program, with copies for the traffic of what is fused, and pauses, as
fused work is slower than a copy: without them the load would draw more power than the update.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilore_planner.costs.layout import NORMAL, Layout
from hilore_planner.costs.sample import Sample, Step
from hilore_planner.costs.table import Entry, tried

Program = Sequence[Sample | int]
"""What an update runs, in order: kernels of its own, and the bytes that fused work between them moves."""

_COPIED_BYTES = 2**28
"""Of one copy at most: some times an L2 cache."""
_SLOWER = 0.8
"""What kernels of fused work take longer than a copy of as many bytes, in parts of that copy.

On an H200 those of an update took 6.5 ms where copies take 3.7 (``docs/results/codecs.json``, everything stored).
"""
_TIMED_COPIES, _TIMED_CYCLES = 8, 1_000_000
_FEW = 100
_HOST_SHARE = 0.7
"""A device whose host needs a larger share of a step's time to start it may have to wait."""
_ALIGNED = 256
"""Inputs start at multiples of this many elements."""


class Arena:
    """Memory that floating-point inputs are parts of, filled with normal numbers.

    Inputs of one call do not overlap; those of different calls do, so that many can wait for their turn.
    """

    def __init__(self, device: torch.device, calls: Iterable[Sequence[Layout]]) -> None:
        """Memory for the largest of some calls, given the layouts of the inputs of each.

        Raises:
            torch.OutOfMemoryError: there is not enough.
        """
        self._device = device
        counts: Counter[torch.dtype] = Counter()
        for layouts in calls:
            counts |= _counts(layouts)
        self._memory = {
            dtype: torch.empty(count, dtype=dtype, device=device).normal_()
            for dtype, count in counts.items()
        }
        self._others: dict[Layout, Tensor] = {}

    def holds(self, layouts: Sequence[Layout]) -> bool:
        """Whether there is room for a call with such inputs."""
        return all(
            dtype in self._memory and count <= len(self._memory[dtype])
            for dtype, count in _counts(layouts).items()
        )

    def inputs(self, layouts: Sequence[Layout]) -> list[Tensor]:
        """Tensors of these layouts, which it :meth:`holds`."""
        used: Counter[torch.dtype] = Counter()
        found = []
        for layout in layouts:
            if not _is_shared(layout):
                if layout not in self._others:
                    self._others[layout] = layout.made_up(self._device)
                found.append(self._others[layout])
                continue
            start, used[layout.dtype] = used[layout.dtype], used[layout.dtype] + _count(layout)
            memory = self._memory[layout.dtype][start:]
            found.append(memory.as_strided(layout.shape, layout.stride))
        return found


def input_bytes(layouts: Sequence[Layout]) -> int:
    """Bytes of an arena that is made for one call."""
    return sum(count * dtype.itemsize for dtype, count in _counts(layouts).items())


def _counts(layouts: Sequence[Layout]) -> Counter[torch.dtype]:
    counts: Counter[torch.dtype] = Counter()
    for layout in layouts:
        if _is_shared(layout):
            counts[layout.dtype] += _count(layout)
    return counts


def _is_shared(layout: Layout) -> bool:
    return layout.dtype in NORMAL and not layout.on_host


def _count(layout: Layout) -> int:
    """Elements that a layout spans, rounded up."""
    return -(-layout.count // _ALIGNED) * _ALIGNED


class Copies:
    """Copies between two buffers of a device."""

    def __init__(self, device: torch.device) -> None:
        self._source, self._target = (
            torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device) for _ in range(2)
        )

    def whole(self) -> None:
        """One that more than fills the L2 cache."""
        self._target.copy_(self._source)

    def moving(self, moved_bytes: int) -> Step:
        """Copies that read and write so many bytes together."""
        full, rest = divmod(max(2, moved_bytes) // 2, _COPIED_BYTES)
        target, source = self._target[:rest], self._source[:rest]

        def step() -> None:
            for _ in range(full):
                self.whole()
            target.copy_(source)

        return step


@dataclass(frozen=True, slots=True)
class Pauses:
    """What a device idles where fused work is slower than the copies that stand for it."""

    cycles_per_byte: float

    @classmethod
    def measured(cls, copies: Copies) -> Pauses:
        """On the current CUDA device."""
        cuda: Any = torch.cuda
        start, middle, end = (cuda.Event(enable_timing=True) for _ in range(3))
        copies.whole()
        start.record()
        for _ in range(_TIMED_COPIES):
            copies.whole()
        middle.record()
        cuda._sleep(_TIMED_CYCLES)
        end.record()
        cuda.synchronize()
        moved_bytes = 2 * _COPIED_BYTES * _TIMED_COPIES
        cycles = _TIMED_CYCLES * start.elapsed_time(middle) / middle.elapsed_time(end)
        return cls(_SLOWER * cycles / moved_bytes)

    def after(self, moved_bytes: int) -> Step:
        """One that follows copies which move so many bytes."""
        cuda: Any = torch.cuda
        cycles = round(self.cycles_per_byte * moved_bytes)
        return lambda: cuda._sleep(cycles)


class Load:
    """The steps of an update, run in a circle."""

    def __init__(self, steps: Sequence[Step]) -> None:
        """Of steps that run without an error; there must be some."""
        self._steps = steps
        self._next = 0
        self._step_ns = 1.0
        self.is_host_bound = False
        """Whether starting the steps takes about as long as running them."""

    @classmethod
    def of_program(cls, program: Program, arena: Arena, copies: Copies, pauses: Pauses) -> Load:
        """Of what an update runs; kernels that the arena has no room for, or that fail, are left out."""
        made: dict[str, Step | None] = {}
        steps = []
        for part in program:
            if isinstance(part, int):
                steps += [copies.moving(part), pauses.after(part)]
                continue
            if part.key not in made:
                made[part.key] = _step(part, arena)
            if (step := made[part.key]) is not None:
                steps.append(step)
        return cls(steps or [copies.whole])

    def warm_up(self, seconds: float) -> None:
        """Run it so long, until clocks have settled, and learn how long a step takes."""
        end = time.perf_counter() + seconds
        host_ns = self._host_ns()
        while True:
            start = time.perf_counter()
            for step in self._steps:
                step()
            torch.cuda.synchronize()
            now = time.perf_counter()
            self._step_ns = 1e9 * (now - start) / len(self._steps)
            if now > end:
                break
        self.is_host_bound = host_ns > _HOST_SHARE * self._step_ns

    def _host_ns(self) -> float:
        """What the host needs to start a step, found with so few that the device's queue is never full."""
        few = self._steps[:_FEW]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for step in few:
            step()
        return 1e9 * (time.perf_counter() - start) / len(few)

    def run(self, stretch_ns: float) -> None:
        """Go on for about so long."""
        for _ in range(math.ceil(stretch_ns / self._step_ns)):
            self._steps[self._next]()
            self._next = (self._next + 1) % len(self._steps)


def _step(sample: Sample, arena: Arena) -> Step | None:
    """What runs a kernel, tried once; None where it cannot be run."""
    layouts = sample.inputs()
    if sample.eager is None or not arena.holds(layouts):
        return None
    step = sample.eager(arena.inputs(layouts))
    return None if isinstance(tried(sample.what, step), Entry) else step
