"""The peak of a region's compiled code, found without running it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from hilore_planner.errors import RegionError
from hilore_planner.passes import compat
from hilore_planner.peak.step import StepPeak, step_peak
from hilore_planner.peak.workspace import MeasuredWorkspaces
from hilore_planner.peak.wrapper import Wrapper
from hilore_planner.region import Surroundings

log = logging.getLogger(__name__)


def workspaces(around: Surroundings) -> MeasuredWorkspaces:
    """What operations take on the device while they run, as far as it is known; the rest is measured when asked for."""
    table = Path(compat.cache_folder()) / "hilore" / f"workspaces-{around.slug}.json"
    table.parent.mkdir(parents=True, exist_ok=True)
    return MeasuredWorkspaces(around.device, table)


def dry_peak(wrappers: Sequence[Wrapper], around: Surroundings) -> StepPeak | None:
    """The peak of one update; None, with a warning, where its code cannot be run dry."""
    forward = next((w for w in wrappers if not w.is_backward), None)
    backward = next((w for w in wrappers if w.is_backward), None)
    if forward is None or backward is None:
        log.warning("the peak of the compiled code is not checked: it was not captured")
        return None
    try:
        return step_peak(
            forward,
            backward,
            forward.example_inputs,
            device=around.device,
            base_bytes=around.base_bytes,
            workspaces=workspaces(around),
            updates=2,
        )
    except RegionError as error:
        log.warning("the peak of the compiled code is not checked: %s", error)
        return None
