"""What a calibration measures: gains of classes one by one, and placements of everything."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product

from hilore_planner.calibration.classes import (
    UnitClass,
    kept_classes,
    rebuilt_classes,
    sources,
    spread_out,
)
from hilore_planner.calibration.effects import Effect, Effects
from hilore_planner.calibration.estimate import fitted_risks, observations, summed_risks
from hilore_planner.calibration.interpret import JointInterpreter
from hilore_planner.calibration.ladders import coarsest_first, ladders, plain_codecs
from hilore_planner.calibration.measure import MeasuredBatch
from hilore_planner.calibration.model import CalibratedRisk
from hilore_planner.calibration.profile import family
from hilore_planner.calibration.progress import Steps
from hilore_planner.calibration.trials import Offers, Trial, draw_placement, is_telling, offers_of
from hilore_planner.codec_names import read_tiers
from hilore_planner.errors import OptionError
from hilore_planner.passes.codecs import Codec, offered_codec
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit
from hilore_planner.solvers.problem import kept_codec

_TRIALS = 4
"""Placements tried on each batch."""
_DRAWS = 50
"""Placements drawn until one is worth measuring."""
_LOOKED_AT = 4
"""Units of a class that codecs are tried on: the others' errors are about those."""


@dataclass(slots=True)
class Sampling:
    """What was measured so far."""

    graph: RecoveryGraph
    plain: tuple[str, ...]
    """Codecs that lose something, and what tiers are made of."""
    tiers: tuple[str, ...]
    """Tiered codecs."""
    ladders: tuple[tuple[str, ...], ...]
    """What classes are kept by alone, the coarsest first; of each, finer ones only where coarser ones do not do."""
    kept: list[UnitClass]
    class_of: dict[str, int]
    """By unit's name, the identity of its class in ``kept``."""
    rebuilt: list[UnitClass]
    steps: Steps
    interpreter: JointInterpreter
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    errors: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By unit and codec."""
    spared_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    """By unit and codec."""
    samples: dict[tuple[int, str], dict[int, tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Squared error of the gradient, and squared exposure times the units' errors; by class's identity and codec, and
    by batch."""
    trials: list[Trial] = field(default_factory=list)
    norms: list[tuple[float, float]] = field(default_factory=list)
    """Squared norm of the gradient and squared exposure, by batch."""
    shares: list[list[float]] = field(default_factory=list)
    """Of each batch's squared exposure."""
    batches: int = 0
    rounding: float | None = None
    """Squared error of the gradient by rounding alone, for each unit of squared exposure, in half precision."""
    erratic: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Codecs whose errors act out of proportion, by class's identity."""

    @classmethod
    def of(cls, graph: RecoveryGraph, names: Sequence[str], buckets: int, steps: Steps) -> Sampling:
        """Nothing measured yet.

        Raises:
            OptionError: none of the codecs loses anything.
        """
        plain = plain_codecs(names)
        if not plain:
            raise OptionError(
                f"option codecs is {list(names)}; accepted here: at least one that loses something"
            )
        tiers = tuple(name for name in dict.fromkeys(names) if read_tiers(name) is not None)
        kept = kept_classes(graph, buckets)
        return cls(
            graph,
            plain,
            tiers,
            ladders(plain, tiers),
            kept,
            {unit.name: id(one) for one in kept for unit in one.units},
            rebuilt_classes(graph, buckets),
            steps,
            JointInterpreter.of(graph),
        )

    def add(self, batch: MeasuredBatch, *, is_perturbed: bool) -> None:
        """Measure on one more batch: each class alone if ``is_perturbed``, and whole placements.

        Raises:
            OptionError: the batch has no gradient, or one that its exposure says it has not.
        """
        if not batch.squared_norm or not batch.exposed:
            raise OptionError(
                f"batch {self.batches + 1} has a squared gradient norm of {batch.squared_norm:g} and a squared "
                f"exposure of {batch.exposed:g}; accepted: batches with a gradient, and the exposure of their "
                "final coefficients"
            )
        self.batches += 1
        self.norms.append((batch.squared_norm, batch.exposed))
        if batch.weights is not None:
            self.shares.append(batch.weights.shares)
        norm = batch.squared_norm / batch.exposed
        effects = Effects(
            self.graph, batch, None if self.rounding is None else self.rounding / norm
        )
        if is_perturbed:
            kept, rebuilt = (sum(map(_is_read, of)) for of in (self.kept, self.rebuilt))
            self.steps.more(kept + rebuilt)
            self._measure_errors(batch)
            for unit_class in self.kept:
                self._sample_kept(effects, unit_class)
            for unit_class in self.rebuilt:
                self._sample_rebuilt(effects, unit_class)
        self.steps.more(_TRIALS)
        raw = summed_risks(self)
        model = CalibratedRisk(fitted_risks(raw, observations(self, raw)), self.graph)
        offers = offers_of(model, self.spared_bytes)
        for _ in range(_TRIALS):
            self._try(effects, model, offers)
        if effects.rounding is not None:
            self.rounding = effects.rounding * norm

    def _measure_errors(self, batch: MeasuredBatch) -> None:
        measured = dict.fromkeys(chain.from_iterable(self.ladders))
        for unit_class, name in product(self.kept, dict.fromkeys((*measured, *self.tiers))):
            offered: dict[str, Codec] = {}
            for unit in unit_class.units:
                value = batch.values[unit.maker]
                codec = offered_codec(unit, name, value)
                if codec is None:
                    continue
                spared = unit.kept_bytes - codec.kept_bytes(value.shape, value.dtype)
                if spared > 0:
                    offered[unit.name] = codec
                    self.spared_bytes[unit.name, name] = spared
            if name not in measured:
                continue
            found = {
                of: batch.error(self.graph.units[of], offered[of])
                for of in spread_out(list(offered), _LOOKED_AT)
            }
            for of in offered:
                error = found[of] if of in found else statistics.fmean(found.values())
                self.errors[of, name].append(error)

    def _sample_kept(self, effects: Effects, unit_class: UnitClass) -> None:
        """The coarsest codec of each ladder that is in proportion: what feeds an exponential takes ever finer ones."""
        known: dict[str, float] = defaultdict(float)
        for ladder in self.ladders:
            for codec in ladder:
                units = [u.name for u in unit_class.units if (u.name, codec) in self.errors]
                if not units:
                    continue
                error = sum(self.errors[name, codec][-1] for name in units)
                found = Effect(0.0)
                of = family(codec)
                if _is_read(unit_class):
                    most = max(known.values(), default=0.0) if of == "fp" else known[of]
                    tested = math.sqrt(most / error) if error else 0.0
                    found = effects.of_class(dict.fromkeys(units, codec), tested=tested)
                if self._sample(effects, unit_class, codec, found, error):
                    known[of] = max(known[of], error * found.factor**2)
                    break
        if _is_read(unit_class):
            self.steps.done()

    def _sample_rebuilt(self, effects: Effects, unit_class: UnitClass) -> None:
        """What making units again adds to the effect of their sources' own smaller copies."""
        for codec in coarsest_first(self.plain):
            of = {source.name for unit in unit_class.units for source in self._sources(unit, codec)}
            units = [unit for unit in unit_class.units if unit.name not in of]
            error = sum(self.source_error(unit, codec) for unit in units)
            if not error:
                continue
            found = Effect(0.0)
            if _is_read(unit_class):
                kept = dict.fromkeys(of, codec)
                again = [unit.name for unit in units]
                # What reads and what makes them takes such errors in proportion.
                is_steady = self._is_steady((*of, *again), codec)
                both = effects.of_class(kept, again, tested=math.inf if is_steady else 0.0)
                alone = self._summed(effects.batch, kept)
                if alone is None:
                    alone = effects.share(kept, (), both.factor)
                found = replace(both, share=max(0.0, both.share - alone))
            if self._sample(effects, unit_class, codec, found, error):
                break
        if _is_read(unit_class):
            self.steps.done()

    def _is_steady(self, names: Iterable[str], codec: str) -> bool:
        """Whether units are kept by a codec that was found to act in proportion."""
        classes = {self.class_of.get(name) for name in names}
        return all(
            of is not None and (of, codec) in self.samples and codec not in self.erratic[of]
            for of in classes
        )

    def _summed(self, batch: MeasuredBatch, kept: Mapping[str, str]) -> float | None:
        """What copies do to the gradient, from what their classes did; None if that is not known, or no sum."""
        total = 0.0
        for name, codec in kept.items():
            of = self.class_of[name]
            moved, errors = self.samples.get((of, codec), {}).get(self.batches, (0.0, 0.0))
            if not errors or codec in self.erratic[of]:
                return None
            total += moved / errors * self.errors[name, codec][-1]
        return total * batch.exposed / batch.squared_norm

    def _sample(
        self, effects: Effects, unit_class: UnitClass, codec: str, found: Effect, error: float
    ) -> bool:
        """Note an effect; whether finer codecs need not be measured."""
        batch, known = effects.batch, (id(unit_class), codec)
        moved = found.share * batch.squared_norm
        self.samples[known][self.batches] = (moved, error * batch.exposed)
        if not found.is_proportional:
            self.erratic[id(unit_class)].add(codec)
        return found.is_proportional

    def gain(self, unit_class: UnitClass, codec: str) -> float | None:
        """Squared relative error of a typical gradient over the units' summed errors; None if not measured.

        The geometric mean over batches: of few, one that is odd would else be most of it.
        """
        samples = self.samples.get((id(unit_class), codec))
        if not samples:
            return None
        ratios = [moved / errors for moved, errors in samples.values() if moved and errors]
        return statistics.geometric_mean(ratios) / self.typical_norm if ratios else 0.0

    def logs(self, unit_class: UnitClass) -> dict[int, float]:
        """Logarithms of a class's gain by batch, with the coarsest codec in proportion; none where it has none."""
        plain = coarsest_first(self.plain)
        steady = [codec for codec in plain if codec not in self.erratic[id(unit_class)]]
        known = [self.samples.get((id(unit_class), codec), {}) for codec in steady]
        most = max(known, key=len, default={})
        return {
            batch: math.log(moved / errors)
            for batch, (moved, errors) in most.items()
            if moved and errors
        }

    @property
    def typical_norm(self) -> float:
        """Squared norm of the gradient for each unit of squared exposure, over all batches."""
        return sum(norm for norm, _ in self.norms) / sum(exposed for _, exposed in self.norms)

    def source_error(self, unit: RecoveryUnit, codec: str) -> float:
        """Mean squared error of what a unit is made from, in the last batch that was perturbed."""
        errors = [self.errors[of.name, codec][-1] for of in self._sources(unit, codec)]
        return sum(errors) / len(sources(self.graph, unit))

    def _sources(self, unit: RecoveryUnit, codec: str) -> list[RecoveryUnit]:
        return [of for of in sources(self.graph, unit) if (of.name, codec) in self.errors]

    def _try(self, effects: Effects, model: CalibratedRisk, offers: Offers) -> None:
        """Measure a placement as it would be run, if one is drawn that shows something."""
        self.steps.done()
        for _ in range(_DRAWS):
            placement = draw_placement(model, offers, self.draw)
            if is_telling(model.typical(placement)):
                break
        else:
            return
        codecs = {name: kept_codec(action) for name, action in placement.items()}
        kept = {name: codec for name, codec in codecs.items() if codec is not None}
        makers = self.interpreter.makers
        rebuilt = [name for name, do in placement.items() if do == "recompute" and name in makers]
        share = effects.of_placement(kept, rebuilt)
        self.trials.append(Trial(placement, self.batches, share))


def _is_read(unit_class: UnitClass) -> bool:
    """Whether backward reads the units; others matter only through what is made again from them."""
    return any(unit.readers for unit in unit_class.units)
