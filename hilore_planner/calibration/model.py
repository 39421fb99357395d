"""The risk model that a profile gives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from hilore_planner.calibration.classes import sources
from hilore_planner.calibration.profile import ClassRisk, RiskProfile
from hilore_planner.codec_names import DROP, STORE, read_tiers
from hilore_planner.errors import ProfileError
from hilore_planner.passes.codecs import codec_for, codec_named
from hilore_planner.passes.risk import FIRST_ORDER
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit
from hilore_planner.solvers.problem import Solution, kept_codec

_LEAST = 1e-12
"""Risk of a copy that loses something but that backward does not read: at none, what is made from it would be exact."""
_ALIKE = 1e-9
"""Relative difference that is summation's."""

_WHOLE = 1.0
"""Risk of what acts out of proportion: all of the gradient, which no plan can afford."""

BySequence = list[float]
"""A number for each place in a batch whose sequences stand in order of exposure."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one inexact unit of a placement adds.

    Attributes:
        risk_class: its class; None if the profile does not know it.
        is_erratic: its error acts out of proportion.
    """

    unit: str
    risk_class: ClassRisk | None
    risks: BySequence
    is_erratic: bool


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
    _sources: dict[str, tuple[RecoveryUnit, ...]] = field(default_factory=dict)
    _found: dict[tuple[bool, str, int | None], ClassRisk | None] = field(default_factory=dict)

    def risk(self, unit: RecoveryUnit, codec: str) -> float:
        """Risk of keeping ``unit`` by ``codec``."""
        if self._is_erratic(unit, codec):
            return _WHOLE
        margin = self._margin(self._class(unit, codec))
        risk = margin * self.mean(self._kept(unit, codec))
        return risk if codec_named(codec).is_lossless else max(risk, _LEAST)

    def inexact_risk(self, unit: RecoveryUnit, codecs: Sequence[str]) -> float:
        """What recomputing ``unit`` from values kept by the worst of ``codecs`` adds."""
        found = self._rebuilt_class(unit)
        if found is None:
            can_be_inexact = unit.can_store and unit.can_recompute and self._made_from(unit)
            return FIRST_ORDER.inexact_risk(unit, codecs) if can_be_inexact else 0.0
        by_codec = [[_error(found, c) for c in self._codecs(codec)] for codec in codecs]
        if any(map(found.is_erratic, chain.from_iterable(by_codec))):
            return _WHOLE
        risks = (self.mean(self._rebuilt(found, errors)) for errors in by_codec)
        return self._margin(found) * max(risks, default=0.0)

    def gradient_error(self, solution: Solution) -> float:
        """Relative gradient error of a whole placement on a typical batch."""
        return math.sqrt(self.typical(solution.placement))

    def sequence_risks(self, solution: Solution) -> tuple[float, ...]:
        """Squared relative gradient error that hardly any batch exceeds, by place of its exposure."""
        found = [0.0] * self._places
        for part in self.parts(solution.placement):
            margin = self._margin(part.risk_class)
            found = _sum(found, [margin * risk for risk in part.risks])
        is_uniform = max(found) - min(found) <= _ALIKE * max(found)
        return (found[0],) if is_uniform else tuple(found)

    def typical(self, placement: Mapping[str, str]) -> float:
        """Squared relative gradient error of a whole placement on a typical batch."""
        return self.mean(self.by_sequence(placement))

    def by_sequence(self, placement: Mapping[str, str]) -> BySequence:
        """The same if all of a batch's exposure were at one place: what it is for a batch is their mean by exposure."""
        total = [0.0] * self._places
        for part in self.parts(placement):
            total = _sum(total, part.risks)
        return total

    def by_class(self, placement: Mapping[str, str]) -> dict[int, float]:
        """What each class adds on a typical batch, by its identity; 0 is of all units the profile does not know."""
        found: dict[int, float] = defaultdict(float)
        for part in self.parts(placement):
            of = 0 if part.risk_class is None else id(part.risk_class)
            found[of] += self.mean(part.risks)
        return found

    def parts(self, placement: Mapping[str, str]) -> Iterator[Part]:
        """Each inexact unit, and what it adds."""
        errors: dict[str, BySequence] = {}
        for name, unit in self.graph.units.items():
            action = placement.get(name, "")
            codec = kept_codec(action)
            if codec is not None:
                errors[name] = self._errors(unit, codec)
                found = self._class(unit, codec)
                is_erratic = self._is_erratic(unit, codec)
                yield Part(name, found, self._kept(unit, codec), is_erratic)
            elif action == "recompute":
                of = [errors.get(source.name) for source in self._made_from(unit)]
                inexact = [source for source in of if source is not None]
                if inexact:
                    errors[name] = [sum(place) / len(of) for place in zip(*inexact, strict=True)]
                    found = self._rebuilt_class(unit)
                    is_erratic = found is not None and any(map(found.is_erratic, errors[name]))
                    yield Part(name, found, self._added(unit, errors[name]), is_erratic)

    def mean(self, values: BySequence) -> float:
        """Over a typical batch's exposure."""
        shares = self.profile.shares or (1.0,)
        return sum(share * value for share, value in zip(shares, values, strict=True))

    @property
    def _places(self) -> int:
        return max(1, len(self.profile.shares))

    def _codecs(self, codec: str) -> list[str]:
        """What keeps the sequence at each place."""
        tiers = read_tiers(codec)
        if tiers is None:
            return [codec] * self._places
        if not self.profile.shares:
            raise ProfileError(
                f"the risk profile says nothing of how exposure is shared, which codec {codec!r} depends on; "
                "calibrate with exposure="
            )
        middles = ((place + 0.5) / self._places * tiers.stops[-1] for place in range(self._places))
        return [
            next(c for c, stop in zip(tiers.codecs, tiers.stops, strict=True) if middle < stop)
            for middle in middles
        ]

    def _added(self, unit: RecoveryUnit, errors: BySequence) -> BySequence:
        found = self._rebuilt_class(unit)
        if found is not None:
            return self._rebuilt(found, errors)
        # An operator's own unit has no value: its outputs carry the risk.
        return errors if unit.can_store else [0.0] * self._places

    def _kept(self, unit: RecoveryUnit, codec: str) -> BySequence:
        found = self._class(unit, codec)
        if found is None:
            return [FIRST_ORDER.risk(unit, codec)] * self._places
        scale = self.profile.additivity
        if read_tiers(codec) is None:
            return [scale * _error(found, codec) * found.gain(codec)] * self._places
        places = found.places or (1.0,) * self._places
        return [
            scale * place * _error(found, kept) * _gain_in_tiers(found, kept)
            for place, kept in zip(places, self._codecs(codec), strict=True)
        ]

    def _errors(self, unit: RecoveryUnit, codec: str) -> BySequence:
        found = self._class(unit, codec)
        if found is None:
            return [codec_for(unit, codec).relative_error ** 2] * self._places
        return [_error(found, c) for c in self._codecs(codec)]

    def _rebuilt(self, found: ClassRisk, errors: BySequence) -> BySequence:
        return [self.profile.additivity * found.gain_at(error) * error for error in errors]

    def _margin(self, found: ClassRisk | None) -> float:
        """From a typical batch to what hardly any exceeds."""
        return self.profile.margin * (1.0 if found is None else found.margin)

    def _made_from(self, unit: RecoveryUnit) -> tuple[RecoveryUnit, ...]:
        if unit.name not in self._sources:
            self._sources[unit.name] = sources(self.graph, unit)
        return self._sources[unit.name]

    def _rebuilt_class(self, unit: RecoveryUnit) -> ClassRisk | None:
        return self._find(unit, is_rebuilt=True)

    def _find(self, unit: RecoveryUnit, *, is_rebuilt: bool) -> ClassRisk | None:
        key = (is_rebuilt, unit.origin.kind, unit.origin.layer)
        if key not in self._found:
            classes = self.profile.rebuilt if is_rebuilt else self.profile.kept
            self._found[key] = self.profile.find(classes, unit.origin.kind, unit.origin.layer)
        return self._found[key]

    def _is_erratic(self, unit: RecoveryUnit, codec: str) -> bool:
        found = self._class(unit, codec)
        return found is not None and not set(found.erratic).isdisjoint(self._codecs(codec))

    def _class(self, unit: RecoveryUnit, codec: str) -> ClassRisk | None:
        """None for units the profile does not know, and for copies that lose nothing."""
        if codec_named(codec).is_lossless:
            return None
        found = self._find(unit, is_rebuilt=False)
        if found is None:
            self.bounded.add(unit.name)
        return found


def _sum(a: BySequence, b: BySequence) -> BySequence:
    return [x + y for x, y in zip(a, b, strict=True)]


def _gain_in_tiers(found: ClassRisk, codec: str) -> float:
    """What the gradient makes of an error in a tier; of lost rows, what it makes of the largest errors."""
    return max(found.gains.values()) if codec in (STORE, DROP) else found.gain_in_tiers(codec)


def _error(found: ClassRisk, codec: str) -> float:
    """Squared relative error of a class's values kept by a plain codec, or by none."""
    if codec in (STORE, DROP):
        return float(codec == DROP)
    if codec not in found.errors:
        raise ProfileError(
            f"the risk profile was not calibrated for codec {codec!r}; it knows {', '.join(found.errors)}: "
            "calibrate with this codec, or leave it out of the option codecs"
        )
    return found.errors[codec]
