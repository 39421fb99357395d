"""Who is alive at the measured peak of a CUDA device, from torch's own allocation history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from hilore_planner.peak.ledger import assigned_name
from hilore_planner.peak.timeline import Owner

MAX_ENTRIES = 1_000_000


def measured_owners(
    fn: Callable[[], object], device: torch.device | str, wrapper_paths: Collection[str]
) -> tuple[Owner, ...]:
    """Run `fn` once with allocation history on, and list what it has allocated at its peak.

    An allocation made in one of the generated files is named after the variable assigned there; any
    other after the innermost Python frame. `counted_bytes` is what was asked for: the history does not
    tell the block's size.
    """
    device = torch.device(device)
    torch.cuda.synchronize(device)
    torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES, stacks="python")
    try:
        result = fn()
        torch.cuda.synchronize(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        trace = torch.cuda.memory._snapshot()["device_traces"][index]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del result
    alive = alive_at_peak(trace)
    owners = [_owner(entry, wrapper_paths) for entry in alive]
    return tuple(sorted(owners, key=lambda owner: -owner.requested_bytes))


def alive_at_peak(trace: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The allocations of a trace that are alive when their sum is first highest."""
    alive: dict[int, Mapping[str, Any]] = {}
    total_bytes = peak_bytes = peak_position = 0
    for replay in (False, True):
        alive.clear()
        for position, entry in enumerate(trace[: peak_position if replay else None], start=1):
            if entry["action"] == "alloc":
                alive[entry["addr"]] = entry
                total_bytes += entry["size"]
            elif entry["action"] == "free_requested" and entry["addr"] in alive:
                total_bytes -= alive.pop(entry["addr"])["size"]
            if not replay and total_bytes > peak_bytes:
                peak_bytes, peak_position = total_bytes, position
    return list(alive.values())


def _owner(entry: Mapping[str, Any], wrapper_paths: Collection[str]) -> Owner:
    frames = entry.get("frames", [])
    for frame in frames:
        if frame["filename"] in wrapper_paths:
            line = int(frame["line"])
            name = assigned_name(frame["filename"], line)
            return Owner(name, line, entry["size"], entry["size"])
    place = frames[0] if frames else {"name": "no Python frame", "filename": "", "line": 0}
    name = f"{place['name']} ({place['filename']}:{place['line']})"
    return Owner(name, 0, entry["size"], entry["size"])
