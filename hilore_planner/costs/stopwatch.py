"""How long work takes on a device, when it is one piece of many.

On CUDA all calls of a batch are timed in turns, each in the middle of the update that is planned (see
:mod:`hilore_planner.costs.load`): alone, it would run at another clock. Before every call stands a copy that more than
fills the L2 cache, where the call would find its inputs if it had run just before; what the copy takes by itself is
subtracted. The load before it keeps the device busy for longer than Python needs to start the call. On the CPU: the
median of single runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hilore_planner.costs.layout import Layout
from hilore_planner.costs.load import Arena, Copies, Load, Program, input_bytes
from hilore_planner.costs.sample import Run, Sample
from hilore_planner.costs.table import OUT_OF_MEMORY, Entry, tried

_WARM_SECONDS = 0.5
"""How long the load runs before anything is timed: power limits follow within some tenths of a second."""
_STRETCH_NS = 1_000_000
_STRETCH_CALLS = 5
"""The load before a call lasts as long as that, and as so many of the call: it, not the call, must set the clock."""
_ROUNDS = 7
_CALLS_PER_COPY = 8
"""As often the copy is timed by itself."""
_PAUSE_CYCLES = 200_000
"""About a tenth of a millisecond, where the load's steps are so small that the device would wait for Python."""
_QUIET = 0.1
"""Spread of the copy's times, relative to their median, above which something else was running."""
_TRIES = 3
_ARENA_SHARE = 0.4
"""Share of the free memory that inputs may take; results take some, too."""
_CPU_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times calls on one device."""

    device: torch.device

    def ready(self, sample: Sample) -> Run:
        """Compile a sample where that is needed, without waiting for its kernels."""
        with torch.no_grad():
            return sample.make([layout.blank(self.device) for layout in sample.inputs()])

    def times(self, samples: Sequence[tuple[Sample, Run]], program: Program) -> list[Entry]:
        """What samples take that :meth:`ready` has made, amid what an update runs."""
        with torch.no_grad():
            if self.device.type != "cuda":
                return [self._alone(sample, run) for sample, run in samples]
            with torch.cuda.device(self.device):
                found = tried("", partial(_times, self.device, samples, program))
            if isinstance(found, Entry):
                # Of what surrounds the samples: it need not be so next time.
                return [
                    Entry(sample.what, None, found.why, is_passing=True) for sample, _ in samples
                ]
            return found

    def _alone(self, sample: Sample, run: Run) -> Entry:
        time_ns = tried(sample.what, partial(self.time_ns, sample, run))
        return time_ns if isinstance(time_ns, Entry) else Entry(sample.what, time_ns)

    def time_ns(self, sample: Sample, run: Run) -> int:
        """Nanoseconds that a sample takes by itself, on the CPU."""
        return _cpu_ns(run, [layout.made_up(self.device) for layout in sample.inputs()])


def _times(
    device: torch.device, samples: Sequence[tuple[Sample, Run]], program: Program
) -> list[Entry]:
    """On the current CUDA device; a sample whose inputs do not fit, or that fails, gets the reason."""
    limit_bytes, copies = _ARENA_SHARE * _free_bytes(), Copies(device)
    layouts = [sample.inputs() for sample, _ in samples]
    around = [part.inputs() for part in program if not isinstance(part, int)]
    fitting = [each for each in (*layouts, *around) if input_bytes(each) <= limit_bytes]
    arena = Arena(device, fitting)
    rounds = _Rounds(Load.of_program(program, arena, copies), copies)
    entries: dict[int, Entry] = {}
    for place, ((sample, run), inputs) in enumerate(zip(samples, layouts, strict=True)):
        found = _first(arena, sample, run, inputs)
        if isinstance(found, Entry):
            entries[place] = found
        else:
            rounds.add(place, found)
    for place, time_ns in rounds.times_ns().items():
        entries[place] = Entry(samples[place][0].what, time_ns)
    return [entries[place] for place in range(len(samples))]


def _first(arena: Arena, sample: Sample, run: Run, layouts: Sequence[Layout]) -> _Call | Entry:
    """A call that was made once, which waits for its kernels and finds out whether it can be made."""
    if not arena.holds(layouts):
        return Entry(sample.what, None, OUT_OF_MEMORY, is_passing=True)

    def first() -> _Call:
        call = _Call(run, arena.inputs(layouts))
        call.run()
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call.run()
        torch.cuda.synchronize()
        call.about_ns = time.perf_counter_ns() - start
        return call

    return tried(sample.what, first)


def _free_bytes() -> int:
    free_bytes, _ = torch.cuda.mem_get_info()
    return free_bytes + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


@dataclass(slots=True)
class _Call:
    """A sample with its inputs, and about how long it takes."""

    function: Run
    inputs: list[Tensor]
    about_ns: int = 0

    def run(self) -> None:
        self.function(list(self.inputs))


class _Rounds:
    """Calls in turns on the current CUDA device, amid a load."""

    def __init__(self, load: Load, copies: Copies) -> None:
        self._load = load
        self._copies = copies
        self._calls: dict[int, _Call] = {}

    def add(self, place: int, call: _Call) -> None:
        """Time this call, too."""
        self._calls[place] = call

    def times_ns(self) -> dict[int, int]:
        """By place: at the clocks of the load and with a cold cache."""
        if not self._calls:
            return {}
        self._load.warm_up(_WARM_SECONDS)
        tries = []
        for _ in range(_TRIES):
            tries.append(self._tried())
            if _spread(tries[-1][None]) <= _QUIET:
                break
        best = min(tries, key=lambda times: _spread(times[None]))
        copy_ns = statistics.median(best[None])
        return {
            place: max(1, round(statistics.median(best[place]) - copy_ns)) for place in self._calls
        }

    def _tried(self) -> dict[int | None, list[float]]:
        """Nanoseconds of each call behind a copy, and of the copy by itself, in every round."""
        times: dict[int | None, list[float]] = {place: [] for place in (None, *self._calls)}
        for _ in range(_ROUNDS):
            events: list[tuple[int | None, tuple[Any, Any]]] = []
            for number, (place, call) in enumerate(self._calls.items()):
                if number % _CALLS_PER_COPY == 0:
                    events.append((None, self._timed(None)))
                events.append((place, self._timed(call)))
            torch.cuda.synchronize()
            for key, (start, end) in events:
                times[key].append(1e6 * float(start.elapsed_time(end)))
        return times

    def _timed(self, call: _Call | None) -> tuple[Any, Any]:
        """Events around a copy, and a call behind it, after a stretch of the load."""
        cuda: Any = torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        self._load.run(max(_STRETCH_NS, _STRETCH_CALLS * call.about_ns if call else 0))
        if self._load.is_host_bound:
            cuda._sleep(_PAUSE_CYCLES)
        start.record()
        self._copies.whole()
        if call is not None:
            call.run()
        end.record()
        return start, end


def _spread(times: Sequence[float]) -> float:
    """How far the middle half of some times is apart, relative to their median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def _cpu_ns(run: Run, inputs: list[Tensor]) -> int:
    """At least five runs, and more while they are short."""
    run(list(inputs))
    times: list[int] = []
    while len(times) < 5 or (sum(times) < 1e9 * _CPU_SECONDS and len(times) < 100):
        start = time.perf_counter_ns()
        run(list(inputs))
        times.append(time.perf_counter_ns() - start)
    return round(statistics.median(times))
