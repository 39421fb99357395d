"""Exact prediction of the memory a compiled update takes, and its measurement."""

from __future__ import annotations

from hilore_planner.peak.dry_run import Workspaces, dry_run
from hilore_planner.peak.measure import (
    ExternalMemory,
    Measured,
    external_memory,
    measured_peak_bytes,
)
from hilore_planner.peak.step import StepPeak, step_peak
from hilore_planner.peak.timeline import Moment, Owner, TensorSpec, Timeline
from hilore_planner.peak.wrapper import InputSpec, Wrapper, capture_wrappers

__all__ = [
    "ExternalMemory",
    "InputSpec",
    "Measured",
    "Moment",
    "Owner",
    "StepPeak",
    "TensorSpec",
    "Timeline",
    "Workspaces",
    "Wrapper",
    "capture_wrappers",
    "dry_run",
    "external_memory",
    "measured_peak_bytes",
    "step_peak",
]
