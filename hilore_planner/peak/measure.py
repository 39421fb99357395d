"""What a call really takes on a device, measured.

CUDA: the caching allocator's own statistics. CPU: the allocation events torch's profiler records;
    the peak is the highest running sum, so what was allocated before does not matter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from hilore_planner.errors import HiloreError
from hilore_planner.uncollected import uncollected

_MEMORY_EVENT = "[memory]"
_PROFILER_LOG = "KINETO_LOG_LEVEL"
_one_profiler = threading.Lock()


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured peak.

    Attributes:
        peak_bytes: most bytes allocated at once during the call, those from before included.
        base_bytes: allocated when it began. CPU: 0, as only changes are seen.
    """

    peak_bytes: int
    base_bytes: int

    @property
    def added_bytes(self) -> int:
        """What the call took at its peak beyond what was there."""
        return self.peak_bytes - self.base_bytes


def measured_peak_bytes(fn: Callable[[], object], device: torch.device | str) -> Measured:
    """Run `fn` once and measure the peak of what is allocated on `device`.

    What `fn` returns is dropped after the measurement ends. Compile and warm up before: the first
    call of a compiled function also allocates for autotuning.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return _cpu_peak(fn)
    if device.type != "cuda":
        raise HiloreError(f"cannot measure memory on device {str(device)!r}; accepted: cpu, cuda")
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    base_bytes = torch.cuda.memory_allocated(device)
    result = fn()
    torch.cuda.synchronize(device)
    measured = Measured(torch.cuda.max_memory_allocated(device), base_bytes)
    del result
    return measured


def _cpu_peak(fn: Callable[[], object]) -> Measured:
    return Measured(max(cpu_moments(fn), default=0), 0)


def cpu_moments(fn: Callable[[], object]) -> list[int]:
    """Bytes allocated on the CPU after each allocation and release during `fn`, starting from 0.

    Releases of what was allocated before are not seen, unless an earlier measurement saw it allocated; garbage from
    before is not collected meanwhile. Events of all threads that `fn` hands work to through torch are seen; one
    measurement runs at a time.
    """
    activities = [ProfilerActivity.CPU]
    with (
        _one_profiler,
        _quiet_profiler(),
        uncollected(),
        profile(activities=activities, profile_memory=True, acc_events=True) as profiler,
    ):
        result = fn()
    assert profiler.profiler is not None
    events = [
        event
        for event in profiler.profiler.kineto_results.events()
        if event.name() == _MEMORY_EVENT and event.device_type() == DeviceType.CPU
    ]
    events.sort(key=lambda event: event.start_ns())
    del result
    return list(accumulate(event.nbytes() for event in events))


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """The profiler's library reads this on first use; without it, it writes two lines to stderr each time."""
    if _PROFILER_LOG in os.environ:
        yield
        return
    os.environ[_PROFILER_LOG] = "6"
    try:
        yield
    finally:
        del os.environ[_PROFILER_LOG]


@dataclass(frozen=True, slots=True)
class ExternalMemory:
    """Who holds a CUDA device's memory.

    Attributes:
        total_bytes: of the device.
        allocated_bytes: in tensors of this process (blocks of its caching allocator).
        cached_bytes: reserved by that allocator, but free.
        others_bytes: everything else: other processes, the CUDA context, libraries.
        free_bytes: free on the device.
    """

    total_bytes: int
    allocated_bytes: int
    cached_bytes: int
    others_bytes: int
    free_bytes: int


def external_memory(device: torch.device | str) -> ExternalMemory:
    """What is held on a CUDA device now, and by whom."""
    device = torch.device(device)
    if device.type != "cuda":
        raise HiloreError(
            f"device is {str(device)!r}; only a CUDA device's memory can be asked for"
        )
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    allocated_bytes = torch.cuda.memory_allocated(device)
    reserved_bytes = torch.cuda.memory_reserved(device)
    return ExternalMemory(
        total_bytes=total_bytes,
        allocated_bytes=allocated_bytes,
        cached_bytes=reserved_bytes - allocated_bytes,
        others_bytes=total_bytes - free_bytes - reserved_bytes,
        free_bytes=free_bytes,
    )
