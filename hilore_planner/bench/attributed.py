"""What the row of a planned update says of its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hilore_planner.attribution import by_kind, profiled, read_steps
from hilore_planner.profiling import profile

_ROWS = 12
"""Differences recorded; the rest are smaller."""


def attributed(run: Callable[[], None], folder: Path, device: torch.device) -> dict[str, Any]:
    """What a planned update's row says of its time: by kind, the largest differences, seconds of planning.

    Args:
        run: one update.
        folder: the backend's ``dump_dir`` of its compilation; what was launched is written there, too.
        device: where it runs.
    """
    profile(run, folder, device=device)
    records, differences = read_steps(folder), profiled(folder)
    kinds = {
        kind: {"predicted_ns": predicted_ns, "measured_ns": measured_ns}
        for kind, (predicted_ns, measured_ns) in by_kind(differences).items()
    }
    return {
        "planning_seconds": sum(record.planning_seconds for record in records),
        "compile_seconds": sum(record.compile_seconds for record in records),
        "kinds": kinds,
        "differences": [asdict(difference) for difference in differences[:_ROWS]],
    }
