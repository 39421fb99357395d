"""How long work takes on a device, when it is one piece of many.

On CUDA every call stands between copies that take about a third of its time and more than fill the L2 cache, as in a
large update: run again and again by itself, a small kernel would find its inputs in the cache, and a large product
would run at the low clock that the power limit leaves it without a rest. What the copies take by themselves is
subtracted. All of a batch is queued behind a pause, so that the device never waits for Python. On the CPU: the median
of single runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilore_planner.costs.sample import Run, Sample

_COPIED_BYTES = 2**28
"""Of one copy: some times an L2 cache."""
_CALL_PER_COPIES = 3
"""Time of a call, as a multiple of that of the copies before it."""
_STEADY_SECONDS = 0.2
"""How long what takes some time is run before it is timed: power limits follow within a tenth of a second."""
_LONG_NS = 100_000
_BATCH_SECONDS = 0.01
_BATCHES = 3
_MOST_LAUNCHES = 100
"""In one batch: more would not fit the queue of launches."""
_PAUSE_CYCLES_PER_COPY = 20_000
"""About 10 microseconds: more than Python takes for a copy."""
_PAUSE_CYCLES_PER_CALL = 100_000
_QUIET = 0.1
"""Spread of the batches, relative to their median, above which something else was running."""
_QUIET_NS = 1_000
"""A spread that is never too large."""
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times calls on one device."""

    device: torch.device

    def ready(self, sample: Sample) -> Run:
        """Compile a sample where that is needed, without waiting for its kernels."""
        with torch.no_grad():
            return sample.make(self._inputs(sample))

    def time_ns(self, sample: Sample, run: Run) -> int:
        """Nanoseconds that a sample takes, which :meth:`ready` has made."""
        with torch.no_grad():
            inputs = self._inputs(sample)
            if self.device.type != "cuda":
                return _cpu_ns(run, inputs)
            with torch.cuda.device(self.device):
                return _Queue(run, inputs, self.device).time_ns()

    def _inputs(self, sample: Sample) -> list[Tensor]:
        return [layout.made_up(self.device) for layout in sample.inputs()]


class _Queue:
    """Calls and copies in turns on the current CUDA device."""

    def __init__(self, run: Run, inputs: list[Tensor], device: torch.device) -> None:
        self._run = run
        self._inputs = inputs
        self._source, self._target = (
            torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device) for _ in range(2)
        )

    def time_ns(self) -> int:
        """Of one call, at steady clocks and with a cold cache."""
        self._batch_ns(1, 1)
        copy_ns = self._batch_ns(0, 10) / 10
        call_ns = max(1.0, self._batch_ns(3, 0) / 3)
        copies = max(1, round(call_ns / _CALL_PER_COPIES / copy_ns))
        turns = round(1e9 * _BATCH_SECONDS / (call_ns + copies * copy_ns))
        turns = max(2, min(turns, _MOST_LAUNCHES // (1 + copies)))
        start = time.perf_counter()
        while call_ns >= _LONG_NS and time.perf_counter() - start < _STEADY_SECONDS:
            self._batch_ns(turns, copies)
        return round(max(1.0, _quietest(self._tried(turns, copies) for _ in range(_TRIES))))

    def _tried(self, turns: int, copies: int) -> list[float]:
        both_ns = [self._batch_ns(turns, copies) for _ in range(_BATCHES)]
        copies_ns = statistics.median(self._batch_ns(0, turns * copies) for _ in range(_BATCHES))
        return [(batch_ns - copies_ns) / turns for batch_ns in both_ns]

    def _batch_ns(self, turns: int, copies: int) -> float:
        """Nanoseconds of so many calls, each behind so many copies; without calls, of the copies."""
        cuda: Any = torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        pause = max(1, turns) * copies * _PAUSE_CYCLES_PER_COPY + turns * _PAUSE_CYCLES_PER_CALL
        cuda._sleep(pause)
        start.record()
        for turn in range(max(1, turns)):
            for _ in range(copies):
                self._target.copy_(self._source)
            if turn < turns:
                self._run(list(self._inputs))
        end.record()
        end.synchronize()
        return 1e6 * float(start.elapsed_time(end))


def _quietest(tries: Iterator[list[float]]) -> float:
    """The median of the first try that nothing disturbed; of all, the least."""
    medians = []
    for times in tries:
        medians.append(statistics.median(times))
        if max(times) - min(times) <= max(_QUIET_NS, _QUIET * medians[-1]):
            return medians[-1]
    return min(medians)


def _cpu_ns(run: Run, inputs: list[Tensor]) -> int:
    """At least five runs, and more while they are short."""
    run(list(inputs))
    times: list[int] = []
    while len(times) < 5 or (sum(times) < 1e9 * _BATCH_SECONDS and len(times) < 100):
        start = time.perf_counter_ns()
        run(list(inputs))
        times.append(time.perf_counter_ns() - start)
    return round(statistics.median(times))
