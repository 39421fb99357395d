"""What a calibration measures: gains of classes one by one, and placements of everything."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from hilore_planner.calibration.classes import UnitClass, kept_classes, rebuilt_classes, sources
from hilore_planner.calibration.estimate import summed_risks
from hilore_planner.calibration.interpret import Change, JointInterpreter
from hilore_planner.calibration.measure import MeasuredBatch, amplification, change_by
from hilore_planner.calibration.model import CalibratedRisk
from hilore_planner.calibration.profile import family
from hilore_planner.calibration.progress import Steps
from hilore_planner.codec_names import DROP, STORE, read_tiers
from hilore_planner.errors import OptionError
from hilore_planner.passes.codecs import codec_for, codec_named
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit

_TRIALS = 3
"""Placements tried on each batch."""
_TRIED_ERRORS = (2e-3, 0.1)
"""Gradient errors that placements which are tried are meant to have: those of plans, and still proportional."""


_DRAWS = 50
"""Placements drawn until one is worth measuring."""
_LEAST, _MOST = 1e-9, 0.04
"""Squared gradient errors that show something of plans: below is rounding, above errors are not in proportion."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A placement that was measured.

    Attributes:
        share: squared relative error of the gradient.
        squared_norm, exposed: of its batch: squared norm of the gradient, and squared exposure.
    """

    placement: dict[str, str]
    share: float
    squared_norm: float
    exposed: float


@dataclass(slots=True)
class Sampling:
    """What was measured so far."""

    graph: RecoveryGraph
    codecs: tuple[str, ...]
    """Those that lose something: plain ones, what tiers are made of, and tiers."""
    probes: tuple[str, ...]
    """The finest of each family, as gains are a family's; and every tiered one, where errors may not be independent."""
    kept: list[UnitClass]
    rebuilt: list[UnitClass]
    steps: Steps
    interpreter: JointInterpreter
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    errors: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By unit and codec."""
    samples: dict[tuple[int, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Squared error of the gradient, and squared exposure times the units' errors; by class's identity and codec."""
    trials: list[Trial] = field(default_factory=list)
    norms: list[tuple[float, float]] = field(default_factory=list)
    """Squared norm of the gradient and squared exposure, by batch."""
    shares: list[list[float]] = field(default_factory=list)
    """Of each batch's squared exposure."""
    batches: int = 0
    _shares: dict[tuple[str, frozenset[str], frozenset[str]], float] = field(default_factory=dict)
    """Of the present batch: sources of one class are often another class."""

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
        finest: dict[str, str] = {}
        for name in sorted(plain, key=lambda name: codec_named(name).relative_error):
            finest.setdefault(family(name), name)
        tiers = tuple(name for name in dict.fromkeys(names) if read_tiers(name) is not None)
        return cls(
            graph,
            (*plain, *tiers),
            (*finest.values(), *tiers),
            kept_classes(graph, buckets),
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
        self._shares.clear()
        if is_perturbed:
            kept, rebuilt = (sum(map(_is_read, of)) for of in (self.kept, self.rebuilt))
            self.steps.more(kept * len(self.probes) + 2 * rebuilt)
            self._measure_errors(batch)
            for unit_class in self.kept:
                for codec in self.probes:
                    self._sample_kept(batch, unit_class, codec)
            for unit_class in self.rebuilt:
                self._sample_rebuilt(batch, unit_class, self.probes[0])
        self.steps.more(_TRIALS)
        for _ in range(_TRIALS):
            self._try(batch)

    def _measure_errors(self, batch: MeasuredBatch) -> None:
        for unit_class in self.kept:
            for unit in unit_class.units:
                for name in self.codecs:
                    codec, value = codec_for(unit, name), batch.values[unit.maker]
                    if not codec.accepts(value):
                        continue
                    if codec.kept_bytes(value.shape, value.dtype) < unit.kept_bytes:
                        self.errors[unit.name, name].append(batch.error(unit, codec))

    def _share(
        self, batch: MeasuredBatch, codec: str, kept: Iterable[str], rebuilt: Iterable[str] = ()
    ) -> float:
        """Squared relative gradient error with units kept by a codec and others made again from them."""
        key = (codec, frozenset(kept), frozenset(rebuilt))
        if key not in self._shares:
            factor = amplification(codec_named(codec), batch.dtype)
            changes: dict[str, Change] = {
                name: change_by(codec_for(self.graph.units[name], codec), factor) for name in key[1]
            }
            changes |= dict.fromkeys(key[2], "recompute")
            self._shares[key] = batch.share(changes) / factor**2
        self.steps.done()
        return self._shares[key]

    def _sample_kept(self, batch: MeasuredBatch, unit_class: UnitClass, codec: str) -> None:
        units = [unit.name for unit in unit_class.units if (unit.name, codec) in self.errors]
        if units:
            error = sum(self.errors[name, codec][-1] for name in units)
            share = self._share(batch, codec, units) if _is_read(unit_class) else 0.0
            self._sample(batch, unit_class, codec, share, error)

    def _sample_rebuilt(self, batch: MeasuredBatch, unit_class: UnitClass, codec: str) -> None:
        """What making units again adds to the effect of their sources' own smaller copies."""
        of = {source.name for unit in unit_class.units for source in self._sources(unit, codec)}
        units = [unit for unit in unit_class.units if unit.name not in of]
        error = sum(self.source_error(unit, codec) for unit in units)
        if not error:
            return
        added = 0.0
        if _is_read(unit_class):
            alone = self._share(batch, codec, of)
            added = max(0.0, self._share(batch, codec, of, (u.name for u in units)) - alone)
        self._sample(batch, unit_class, codec, added, error)

    def _sample(
        self, batch: MeasuredBatch, unit_class: UnitClass, codec: str, share: float, error: float
    ) -> None:
        found = (share * batch.squared_norm, error * batch.exposed)
        self.samples[id(unit_class), codec].append(found)

    def gain(self, unit_class: UnitClass, codec: str) -> float | None:
        """Squared relative error of a typical gradient over the units' summed errors; None if not measured."""
        samples = self.samples.get((id(unit_class), codec))
        if not samples:
            return None
        moved, errors = (sum(column) for column in zip(*samples, strict=True))
        return moved / errors / self.typical_norm if errors else 0.0

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

    def _try(self, batch: MeasuredBatch) -> None:
        """Measure a placement as it would be run, if one is drawn that shows something."""
        model = CalibratedRisk(summed_risks(self), self.graph)
        for _ in range(_DRAWS):
            codec = self.draw.choice(self.codecs)
            placement = self._likely_placement(codec)
            if is_telling(model.typical(placement)):
                break
        else:
            self.steps.done()
            return
        kept = [name for name, action in placement.items() if action.startswith("compress:")]
        makers = self.interpreter.makers
        rebuilt = [name for name, do in placement.items() if do == "recompute" and name in makers]
        share = self._share(batch, codec, kept, rebuilt)
        self.trials.append(Trial(placement, share, batch.squared_norm, batch.exposed))

    def _likely_placement(self, codec: str) -> dict[str, str]:
        """What a solver might choose: the classes that risk least for their bytes are kept by ``codec``.

        Of the other kinds of units some are stored, and some made again.
        """
        least, most = (math.log(error) for error in _TRIED_ERRORS)
        cheap = self._cheapest(codec, math.exp(2 * self.draw.uniform(least, most)))
        part, again = self.draw.random(), dict[str, bool]()
        placement: dict[str, str] = {}
        for name, unit in self.graph.units.items():
            kind = unit.origin.kind
            if kind not in again:
                again[kind] = self.draw.random() < part
            if not unit.can_store:
                placement[name] = "recompute"
            elif name in cheap:
                placement[name] = f"compress:{codec}"
            else:
                is_again = again[kind] and unit.can_recompute and not unit.forced
                placement[name] = "recompute" if is_again else "store"
        return placement

    def _cheapest(self, codec: str, budget: float) -> set[str]:
        """Units of the classes whose copies by ``codec`` risk least for their bytes, together up to ``budget``."""
        probe = codec if codec in self.probes else self._probe_of(codec)
        found: list[tuple[float, float, list[str]]] = []
        for unit_class in self.kept:
            units = [unit for unit in unit_class.units if (unit.name, codec) in self.errors]
            gain = self.gain(unit_class, probe)
            if units and gain is not None:
                risk = gain * sum(self.errors[unit.name, codec][-1] for unit in units)
                size_bytes = sum(unit.kept_bytes for unit in units)
                found.append((risk / size_bytes, risk, [unit.name for unit in units]))
        found.sort()
        risks = accumulate(risk for _, risk, _ in found)
        chosen = (names for (_, _, names), sum_ in zip(found, risks, strict=True) if sum_ <= budget)
        return {name for names in chosen for name in names}

    def _probe_of(self, codec: str) -> str:
        """The codec whose gains stand for those of ``codec``."""
        return next(probe for probe in self.probes if family(probe) == family(codec))


def is_telling(squared_error: float) -> bool:
    """Whether a placement of this predicted squared gradient error shows something of those that plans have."""
    return _LEAST < squared_error < _MOST


def _is_read(unit_class: UnitClass) -> bool:
    """Whether backward reads the units; others matter only through what is made again from them."""
    return any(unit.readers for unit in unit_class.units)


def plain_codecs(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the named codecs that lose something, and what tiers are made of."""
    plain: list[str] = []
    for name in names:
        tiers = read_tiers(name)
        plain += [name] if tiers is None else [c for c in tiers.codecs if c not in (STORE, DROP)]
    return tuple(c for c in dict.fromkeys(plain) if not codec_named(c).is_lossless)
