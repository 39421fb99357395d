"""How long work takes on a device, when it is one piece of many.

On CUDA all calls of a batch are timed in turns, each in the middle of the update that is planned (see
:mod:`hilore_planner.costs.load`): alone, it would run at another clock. The L2 cache is as an update leaves it. A copy
that more than fills it comes first; then the call's largest input is written, where the cache can hold it: most work
reads what was made just before. What stands before the call takes by itself is subtracted. The load before all that
keeps the device busy for longer than Python needs to start the call. On the CPU: the median of single runs.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hilore_planner.costs.layout import Layout
from hilore_planner.costs.lead import Lead, Leads
from hilore_planner.costs.load import Arena, Copies, Load, Pauses, Program, input_bytes
from hilore_planner.costs.sample import Run, Sample
from hilore_planner.costs.table import OUT_OF_MEMORY, Entry, tried

_WARM_SECONDS = 0.5
"""How long the load runs before anything is timed: power limits follow within some tenths of a second."""
_STRETCH_NS = 1_000_000
_STRETCH_CALLS = 5
"""The load before a call lasts as long as that, and as so many of the call: it, not the call, must set the clock."""
_ROUNDS = 7
_CALLS_PER_LEAD = 8
"""As often what stands before them is timed by itself."""
_PAUSE_CYCLES = 200_000
"""About a tenth of a millisecond, where the load's steps are so small that the device would wait for Python."""
_CACHED_SHARE = 2 / 3
"""Of the L2 cache: the rest holds what the call reads and writes beside."""
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
    load = Load.of_program(program, arena, copies, Pauses.measured(copies))
    rounds = _Rounds(load, Leads(copies, _cached_bytes(device)))
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


def _cached_bytes(device: torch.device) -> int:
    """How much of what a kernel writes the next one finds in the L2 cache."""
    return int(_CACHED_SHARE * torch.cuda.get_device_properties(device).L2_cache_size)


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

    def __init__(self, load: Load, leads: Leads) -> None:
        self._load = load
        self._leads = leads
        self._calls: dict[int, tuple[Lead, _Call]] = {}

    def add(self, place: int, call: _Call) -> None:
        """Time this call, too."""
        self._calls[place] = self._leads.of(call.inputs), call

    def times_ns(self) -> dict[int, int]:
        """By place: at the clocks of the load and with the cache as an update leaves it."""
        if not self._calls:
            return {}
        self._load.warm_up(_WARM_SECONDS)
        tries: list[_Times] = []
        for _ in range(_TRIES):
            tries.append(self._tried())
            if tries[-1].spread <= _QUIET:
                break
        best = min(tries, key=lambda times: times.spread)
        return {
            place: max(1, round(best.of_calls[place] - best.of_leads[lead.moved_bytes]))
            for place, (lead, _) in self._calls.items()
        }

    def _tried(self) -> _Times:
        """Nanoseconds of each call with its lead, and of leads by themselves, in every round."""
        calls: dict[int, list[float]] = {place: [] for place in self._calls}
        leads: dict[int, list[float]] = defaultdict(list)
        for _ in range(_ROUNDS):
            whole = self._leads.whole
            events = [(leads[whole.moved_bytes], self._timed(whole, None))]
            since = Counter({whole.moved_bytes: 1})
            for place, (lead, call) in self._calls.items():
                if since[lead.moved_bytes] % _CALLS_PER_LEAD == 0:
                    events.append((leads[lead.moved_bytes], self._timed(lead, None)))
                since[lead.moved_bytes] += 1
                events.append((calls[place], self._timed(lead, call)))
            torch.cuda.synchronize()
            for found, (start, end) in events:
                found.append(1e6 * float(start.elapsed_time(end)))
        return _Times.of(calls, leads)

    def _timed(self, lead: Lead, call: _Call | None) -> tuple[Any, Any]:
        """Events around a lead, and a call behind it, after a stretch of the load."""
        cuda: Any = torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        self._load.run(max(_STRETCH_NS, _STRETCH_CALLS * call.about_ns if call else 0))
        if self._load.is_host_bound:
            cuda._sleep(_PAUSE_CYCLES)
        lead.before()
        start.record()
        lead.run()
        if call is not None:
            call.run()
        end.record()
        return start, end


@dataclass(frozen=True, slots=True)
class _Times:
    """Medians over the rounds of one try, in nanoseconds."""

    of_calls: dict[int, float]
    of_leads: dict[int, float]
    spread: float
    """Of the copy that fills the cache: it takes long enough to tell whether something else was running."""

    @classmethod
    def of(cls, calls: dict[int, list[float]], leads: dict[int, list[float]]) -> _Times:
        """Of every call by its place, and of every lead by what it moves."""
        return cls(_medians(calls), _medians(leads), _spread(leads[0]))


def _medians(times: dict[int, list[float]]) -> dict[int, float]:
    return {key: statistics.median(found) for key, found in times.items()}


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
