"""``hilore.profile``: what a compiled update launches, and how long each launch takes, as torch's profiler sees it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, record_function, schedule
from torch.profiler import profile as torch_profile

from hilore_planner.attribution import LAUNCHES, Launch

_STEADY_SECONDS = 0.5
"""How long a GPU works before what it launches is timed: until its clock has settled under the power limit."""
NAMED_KERNELS = {"cpp.enable_kernel_profile": True}
"""Inductor's setting that shows the profiler which of its kernels runs; on CUDA it always does."""
_RUNTIME = re.compile(r"^cu(da)?[A-Z]")
_LAST = "hilore: last run"
_CALL = re.compile(r"^(triton_|(graph_\d+_)?cpp_|aten::|extern_kernels|hilore::|cudnn)")


def profile(
    update: Callable[[], object], dump_dir: str | Path, *, device: str | torch.device | None = None
) -> None:
    """Run an update under the profiler and write what it launched into its ``dump_dir``.

    ``hilore explain PLAN --profile DUMP_DIR`` then compares it with what the plan predicted. Run the update some
    times before. On a GPU it is run for half a second without a pause, as in a trainer, and the last one counts.

    Args:
        update: forward and backward.
        dump_dir: the option ``dump_dir`` with which it was compiled. On the CPU its kernels are seen only if the
            option ``inductor`` was ``{"cpp.enable_kernel_profile": True}``.
        device: where it runs; None: on a GPU if there is one.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    found = launches(update, place)
    (Path(dump_dir) / LAUNCHES).write_bytes(msgspec.json.encode(found))


def launches(run: Callable[[], object], device: torch.device) -> list[Launch]:
    """Run under the profiler and list what the last run launched, in order.

    On the CPU, kernels that Inductor writes are there only with its setting ``cpp.enable_kernel_profile``.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    before = _runs_before(run, device)
    with torch_profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=1),
        record_shapes=True,
        acc_events=True,
    ) as found:
        run()
        wait(device)  # what still runs when recording starts is counted with what is launched then
        found.step()
        for _ in range(before):
            run()
        with record_function(_LAST):
            run()
        wait(device)
    events: Any = found.events()
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    start = next(event.time_range.start for event in on_host if event.name == _LAST)
    of_last = [event for event in on_host if event.time_range.start >= start]
    return list(_launches(of_last, is_timed_on_host=device.type == "cpu"))


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _runs_before(run: Callable[[], object], device: torch.device) -> int:
    """How many runs keep a GPU busy until it is steady; none elsewhere."""
    if device.type != "cuda":
        return 0
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return math.ceil(_STEADY_SECONDS / (time.perf_counter() - start))


def _launches(events: list[Any], *, is_timed_on_host: bool) -> Iterator[Launch]:
    for event in sorted(events, key=lambda e: e.time_range.start):
        if not _CALL.match(event.name) or _is_within_call(event):
            continue
        time_us = event.cpu_time_total if is_timed_on_host else _device_us(event)
        if time_us > 0:
            shapes = tuple(tuple(shape) for shape in event.input_shapes or () if shape)
            yield Launch(event.name.removeprefix("aten::"), shapes, round(1e3 * time_us))


def _device_us(event: Any) -> float:
    """Of the kernels that a call started, each once.

    The profiler numbers operators and calls of CUDA's runtime apart, and takes a runtime call for the operator of the
    same number: its kernels are another's, mostly those of the operator around it.
    """
    own_us = sum(float(kernel.duration) for kernel in event.kernels)
    inside = (child for child in event.cpu_children if not _RUNTIME.match(child.name))
    return own_us + sum(map(_device_us, inside))


def _is_within_call(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if _CALL.match(parent.name):
            return True
        parent = parent.cpu_parent
    return False
