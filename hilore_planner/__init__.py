"""Offline activation-memory planning for GRPO actor updates in PyTorch.

Importing this package loads neither torch nor a solver; each name is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hilore_planner.calibration.calibrate import calibrate as calibrate
    from hilore_planner.calibration.profile import RiskProfile as RiskProfile
    from hilore_planner.errors import HiloreError as HiloreError
    from hilore_planner.grpo.exposure import exposure as exposure
    from hilore_planner.offline.planner import plan as plan
    from hilore_planner.plan import PlacementPlan as PlacementPlan
    from hilore_planner.policy_update import PolicyUpdate as PolicyUpdate
    from hilore_planner.profiling import profile as profile
    from hilore_planner.verification import verify as verify

_HOME = {
    "HiloreError": "hilore_planner.errors",
    "PlacementPlan": "hilore_planner.plan",
    "PolicyUpdate": "hilore_planner.policy_update",
    "RiskProfile": "hilore_planner.calibration.profile",
    "calibrate": "hilore_planner.calibration.calibrate",
    "exposure": "hilore_planner.grpo.exposure",
    "plan": "hilore_planner.offline.planner",
    "profile": "hilore_planner.profiling",
    "verify": "hilore_planner.verification",
}

__all__ = [
    "HiloreError",
    "PlacementPlan",
    "PolicyUpdate",
    "RiskProfile",
    "calibrate",
    "exposure",
    "plan",
    "profile",
    "verify",
]


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
