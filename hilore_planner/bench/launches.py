"""What a compiled update launches, and how long each launch takes, as torch's profiler sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

_GENERATED = re.compile(r"^(triton_|(graph_\d+_)?cpp_)")
"""Names of kernels that Inductor wrote."""
_LIBRARY = re.compile(r"^(aten::|extern_kernels|hilore::|cudnn)")


@dataclass(frozen=True, slots=True)
class Launch:
    """One call from the compiled code.

    Attributes:
        name: of the kernel that Inductor wrote, or of the library's operator (without ``aten::``).
        shapes: of an operator's inputs.
        ns: on the device, of all kernels that it started.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ns: int

    @property
    def is_generated(self) -> bool:
        """Whether Inductor wrote it."""
        return bool(_GENERATED.match(self.name))


def launches(run: Callable[[], None], device: torch.device) -> list[Launch]:
    """Run once under the profiler and list what was launched, in order.

    On the CPU, kernels that Inductor writes are there only with its setting ``cpp.enable_kernel_profile``.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True, acc_events=True) as found:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    events: Any = found.events()
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    return list(_launches(on_host, is_timed_on_host=device.type == "cpu"))


def _launches(events: list[Any], *, is_timed_on_host: bool) -> Iterator[Launch]:
    for event in sorted(events, key=lambda e: e.time_range.start):
        if not _is_call(event.name) or _is_within_call(event):
            continue
        time_us = event.cpu_time_total if is_timed_on_host else event.device_time_total
        if time_us > 0:
            shapes = tuple(tuple(shape) for shape in event.input_shapes or () if shape)
            yield Launch(event.name.removeprefix("aten::"), shapes, round(1e3 * time_us))


def _is_call(name: str) -> bool:
    return bool(_GENERATED.match(name) or _LIBRARY.match(name))


def _is_within_call(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if _is_call(parent.name):
            return True
        parent = parent.cpu_parent
    return False
