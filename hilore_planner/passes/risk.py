"""What a choice adds to the gradient's error, in parts of the squared gradient norm.

Errors of different units are taken as independent: they add in squares, so that risks add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from hilore_planner.passes.codecs import codec_for, codec_named
from hilore_planner.passes.ops import tensor
from hilore_planner.passes.units import RecoveryUnit
from hilore_planner.solvers.problem import Solution

_CHANGED = 1.4
"""Share of a mask that rounding may change, over the codec's relative error: Gaussian values within half a step of 0.

Half a step is √3 errors, and the density at 0 is 0.4 on either side."""


class RiskModel(Protocol):
    """Prices the inexactness of one unit."""

    def risk(self, unit: RecoveryUnit, codec: str) -> float:
        """Risk of keeping ``unit`` by ``codec``."""
        ...

    def inexact_risk(self, unit: RecoveryUnit, codecs: Sequence[str]) -> float:
        """What recomputing ``unit`` from values kept by one of ``codecs`` adds to their own risk."""
        ...

    def gradient_error(self, solution: Solution) -> float:
        """Relative gradient error of a whole placement on a typical batch."""
        ...

    def sequence_risks(self, solution: Solution) -> tuple[float, ...]:
        """As plans keep them; empty where nothing is known of sequences."""
        ...


def is_mask(unit: RecoveryUnit) -> bool:
    """Whether a unit's value is of booleans."""
    value = tensor(unit.maker)
    return value is not None and value.dtype == torch.bool


class FirstOrderBound:
    """Without calibration: a relative error in one unit is at most the same relative error in the gradient."""

    def risk(self, unit: RecoveryUnit, codec: str) -> float:
        """Square of the codec's relative error on Gaussian rows."""
        return codec_for(unit, codec).relative_error ** 2

    def inexact_risk(self, unit: RecoveryUnit, codecs: Sequence[str]) -> float:
        """The worst codec's risk once more; of a mask, the share of its values that the worst codec may change."""
        if is_mask(unit):
            return max(
                (_CHANGED * codec_named(codec).relative_error for codec in codecs), default=0.0
            )
        return max((self.risk(unit, codec) for codec in codecs), default=0.0)

    def gradient_error(self, solution: Solution) -> float:
        """The root of the summed risks."""
        return math.sqrt(solution.risk)

    def sequence_risks(self, solution: Solution) -> tuple[float, ...]:
        """Nothing is known."""
        return ()


FIRST_ORDER = FirstOrderBound()
