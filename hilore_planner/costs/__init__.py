"""Where the times of a plan come from: the device itself, or its data sheet."""

from __future__ import annotations

from hilore_planner.costs.choice import costs_for

__all__ = ["costs_for"]
