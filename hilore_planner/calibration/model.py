"""The risk model that a profile gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hilore_planner.calibration.classes import sources
from hilore_planner.calibration.profile import ClassRisk, RiskProfile
from hilore_planner.errors import ProfileError
from hilore_planner.passes.codecs import codec_named
from hilore_planner.passes.risk import FIRST_ORDER
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit

_CODEC = "compress:"


@dataclass(slots=True)
class CalibratedRisk:
    """Risks of one graph's units from measured gains.

    Those the solver sums hold for nearly every batch; :meth:`typical` is the sum for a typical one.

    Attributes:
        bounded: units the profile does not know, which are charged the first-order bound.
    """

    profile: RiskProfile
    graph: RecoveryGraph
    bounded: set[str] = field(default_factory=set)

    def risk(self, unit: RecoveryUnit, codec: str) -> float:
        """Risk of keeping ``unit`` by ``codec``."""
        return self.profile.margin * self._kept(unit, codec)

    def inexact_risk(self, unit: RecoveryUnit, codecs: Sequence[str]) -> float:
        """What recomputing ``unit`` from values kept by the worst of ``codecs`` adds."""
        found = self.profile.find(self.profile.rebuilt, unit.origin.kind, unit.origin.layer)
        if found is None:
            can_be_inexact = unit.can_store and unit.can_recompute and sources(self.graph, unit)
            return FIRST_ORDER.inexact_risk(unit, codecs) if can_be_inexact else 0.0
        errors = [_error(found, codec) for codec in codecs]
        return self.profile.margin * self._rebuilt(found, max(errors, default=0.0))

    def typical(self, placement: Mapping[str, str]) -> float:
        """Squared relative gradient error of a whole placement on a typical batch."""
        errors: dict[str, float] = {}
        total = 0.0
        for name, unit in self.graph.units.items():
            action = placement.get(name, "")
            if action.startswith(_CODEC):
                codec = action.removeprefix(_CODEC)
                total += self._kept(unit, codec)
                errors[name] = self._error(unit, codec)
            elif action == "recompute":
                of = sources(self.graph, unit)
                inexact = sum(errors.get(source.name, 0.0) for source in of)
                if inexact:
                    errors[name] = inexact / len(of)
                    total += self._added(unit, errors[name])
        return total

    def _added(self, unit: RecoveryUnit, error: float) -> float:
        found = self.profile.find(self.profile.rebuilt, unit.origin.kind, unit.origin.layer)
        if found is not None:
            return self._rebuilt(found, error)
        return (
            error if unit.can_store else 0.0
        )  # an operator's own unit; its outputs carry the risk

    def _kept(self, unit: RecoveryUnit, codec: str) -> float:
        if codec_named(codec).relative_error == 0:
            return 0.0
        found = self._class(unit)
        if found is None:
            return FIRST_ORDER.risk(unit, codec)
        return self.profile.additivity * found.gain(codec) * _error(found, codec)

    def _rebuilt(self, found: ClassRisk, error: float) -> float:
        return self.profile.additivity * found.gain("") * error

    def _error(self, unit: RecoveryUnit, codec: str) -> float:
        found = self._class(unit)
        return codec_named(codec).relative_error ** 2 if found is None else _error(found, codec)

    def _class(self, unit: RecoveryUnit) -> ClassRisk | None:
        found = self.profile.find(self.profile.kept, unit.origin.kind, unit.origin.layer)
        if found is None:
            self.bounded.add(unit.name)
        return found


def _error(found: ClassRisk, codec: str) -> float:
    if codec not in found.errors:
        raise ProfileError(
            f"the risk profile was not calibrated for codec {codec!r}; it knows {', '.join(found.errors)}: "
            "calibrate with this codec, or leave it out of the option codecs"
        )
    return found.errors[codec]
