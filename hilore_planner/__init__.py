"""Offline activation-memory planning for GRPO actor updates in PyTorch.

Importing this package loads neither torch nor a solver; each name is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hilore_planner.errors import HiloreError as HiloreError
    from hilore_planner.grpo.exposure import exposure as exposure
    from hilore_planner.offline.planner import plan as plan
    from hilore_planner.plan import PlacementPlan as PlacementPlan

_HOME = {
    "HiloreError": "hilore_planner.errors",
    "PlacementPlan": "hilore_planner.plan",
    "exposure": "hilore_planner.grpo.exposure",
    "plan": "hilore_planner.offline.planner",
}

__all__ = ["HiloreError", "PlacementPlan", "exposure", "plan"]


class _Face(ModuleType):
    """``hilore_planner.plan`` is the function, also once the submodule of that name has been imported."""

    @property
    def plan(self) -> object:
        return __getattr__("plan")

    @plan.setter
    def plan(self, submodule: object) -> None:
        """What importing the submodule would do."""


sys.modules[__name__].__class__ = _Face


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
