"""What a choice adds to the gradient's error, in parts of the squared gradient norm.

Errors of different units are taken as independent: they add in squares, so that risks add.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hilore_planner.passes.codecs import codec_for
from hilore_planner.passes.units import RecoveryUnit


class RiskModel(Protocol):
    """Prices the inexactness of one unit."""

    def risk(self, unit: RecoveryUnit, codec: str) -> float:
        """Risk of keeping ``unit`` by ``codec``."""
        ...

    def inexact_risk(self, unit: RecoveryUnit, codecs: Sequence[str]) -> float:
        """What recomputing ``unit`` from values kept by one of ``codecs`` adds to their own risk."""
        ...


class FirstOrderBound:
    """Without calibration: a relative error in one unit is at most the same relative error in the gradient."""

    def risk(self, unit: RecoveryUnit, codec: str) -> float:
        """Square of the codec's relative error on Gaussian rows."""
        return codec_for(unit, codec).relative_error ** 2

    def inexact_risk(self, unit: RecoveryUnit, codecs: Sequence[str]) -> float:
        """The worst codec's risk once more."""
        return max((self.risk(unit, codec) for codec in codecs), default=0.0)


FIRST_ORDER = FirstOrderBound()
