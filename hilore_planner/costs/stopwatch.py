"""How long work takes on a device, when it is one piece of many.

On CUDA: calls queue up behind a pause, so that the device never waits for Python, and run for a tenth of a second
before they are timed, so that the clock is that of steady work. Inputs that fit the L2 cache take turns with copies of
themselves until twice its size is in use: most of what a kernel of a large update reads is no longer there. On the
CPU: the median of single runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilore_planner.costs.sample import Run, Sample

_MOST_COPIES = 16
_STEADY_SECONDS = 0.1
_BATCH_SECONDS = 0.01
_BATCHES = 5
_MOST_CALLS = 100
"""In one batch: more would not fit the queue of launches."""
_PAUSE_CYCLES_PER_CALL = 100_000
"""About 50 microseconds: more than Python takes for a call."""
_QUIET = 0.1
"""Spread of the batches above which something else was running."""
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times calls on one device."""

    device: torch.device

    def time_ns(self, sample: Sample) -> int:
        """Nanoseconds that a sample takes, compiled where that is needed."""
        layouts = sample.inputs()
        size_bytes = sum(layout.size_bytes for layout in layouts)
        with torch.no_grad():
            inputs = [
                [layout.made_up(self.device) for layout in layouts]
                for _ in range(self._copies(size_bytes))
            ]
            run = sample.make(inputs[0])
            if self.device.type == "cuda":
                return self._cuda_ns(run, inputs)
            return _cpu_ns(run, inputs)

    def _copies(self, size_bytes: int) -> int:
        """How many lists of inputs of this size take turns."""
        if self.device.type != "cuda":
            return 1
        cache_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        return min(_MOST_COPIES, max(1, -(-2 * cache_bytes // max(1, size_bytes))))

    def _cuda_ns(self, run: Run, inputs: Sequence[list[Tensor]]) -> int:
        with torch.cuda.device(self.device):
            _batch_ns(run, inputs, len(inputs))
            single_ns = _batch_ns(run, inputs, 3)
            calls = min(_MOST_CALLS, max(len(inputs), round(1e9 * _BATCH_SECONDS / single_ns)))
            start = time.perf_counter()
            while time.perf_counter() - start < _STEADY_SECONDS:
                _batch_ns(run, inputs, calls)
            tries = (self._tried(run, inputs, calls) for _ in range(_TRIES))
            return round(_quietest(tries))

    def _tried(self, run: Run, inputs: Sequence[list[Tensor]], calls: int) -> list[float]:
        return [_batch_ns(run, inputs, calls) for _ in range(_BATCHES)]


def _quietest(tries: Iterator[list[float]]) -> float:
    """The median of the first try that nothing disturbed; of all, the least."""
    medians = []
    for times in tries:
        medians.append(statistics.median(times))
        if max(times) - min(times) <= _QUIET * medians[-1]:
            return medians[-1]
    return min(medians)


def _batch_ns(run: Run, inputs: Sequence[list[Tensor]], calls: int) -> float:
    cuda: Any = torch.cuda
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda._sleep(calls * _PAUSE_CYCLES_PER_CALL)
    start.record()
    for call in range(calls):
        run(list(inputs[call % len(inputs)]))
    end.record()
    end.synchronize()
    return 1e6 * float(start.elapsed_time(end)) / calls


def _cpu_ns(run: Run, inputs: Sequence[list[Tensor]]) -> int:
    """At least five runs, and more while they are short."""
    run(list(inputs[0]))
    times: list[int] = []
    while len(times) < 5 or (sum(times) < 1e9 * _BATCH_SECONDS and len(times) < 100):
        start = time.perf_counter_ns()
        run(list(inputs[0]))
        times.append(time.perf_counter_ns() - start)
    return round(statistics.median(times))
