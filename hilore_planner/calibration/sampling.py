"""What a calibration measures: gains of classes one by one, and random placements of everything."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hilore_planner.calibration.classes import UnitClass, kept_classes, rebuilt_classes, sources
from hilore_planner.calibration.interpret import Change, JointInterpreter
from hilore_planner.calibration.measure import MeasuredBatch, amplification, change_by
from hilore_planner.calibration.progress import Steps
from hilore_planner.errors import OptionError
from hilore_planner.passes.codecs import Codec, codec_named
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit

_TRIALS = 2
"""Random placements tried on each batch."""


@dataclass(slots=True)
class Sampling:
    """What was measured so far."""

    graph: RecoveryGraph
    codecs: tuple[Codec, ...]
    probes: tuple[Codec, ...]
    """The finest and the coarsest codec: gains of those between lie between."""
    kept: list[UnitClass]
    rebuilt: list[UnitClass]
    steps: Steps
    interpreter: JointInterpreter
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    errors: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By unit and codec."""
    samples: dict[tuple[int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """Gains, by identity of the class and codec."""
    trials: list[tuple[dict[str, str], float]] = field(default_factory=list)
    """Placements and their squared relative errors."""
    batches: int = 0
    _shares: dict[tuple[str, frozenset[str], frozenset[str]], float] = field(default_factory=dict)
    """Of the present batch: sources of one class are often another class."""

    @classmethod
    def of(cls, graph: RecoveryGraph, names: Sequence[str], buckets: int, steps: Steps) -> Sampling:
        """Nothing measured yet.

        Raises:
            OptionError: none of the codecs loses anything.
        """
        lossy = [c for c in map(codec_named, names) if c.relative_error > 0]
        if not lossy:
            raise OptionError(
                f"option codecs is {list(names)}; accepted here: at least one that loses something"
            )
        by_error = sorted(lossy, key=lambda codec: codec.relative_error)
        probes = tuple(dict.fromkeys((by_error[0], by_error[-1])))
        return cls(
            graph,
            tuple(lossy),
            probes,
            kept_classes(graph, buckets),
            rebuilt_classes(graph, buckets),
            steps,
            JointInterpreter.of(graph),
        )

    def add(self, batch: MeasuredBatch, *, is_perturbed: bool) -> None:
        """Measure on one more batch: each class alone if ``is_perturbed``, and random placements."""
        self.batches += 1
        self._shares.clear()
        if is_perturbed:
            passes = len(self.kept) * len(self.probes) + 2 * len(self.rebuilt)
            self.steps.more(passes)
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
                for codec in self.codecs:
                    self.errors[unit.name, codec.name].append(batch.error(unit, codec))

    def _share(
        self, batch: MeasuredBatch, codec: Codec, kept: Iterable[str], rebuilt: Iterable[str] = ()
    ) -> float:
        """Squared relative gradient error with units kept by a codec and others made again from them."""
        key = (codec.name, frozenset(kept), frozenset(rebuilt))
        if key not in self._shares:
            factor = amplification(codec, batch.dtype)
            changes: dict[str, Change] = dict.fromkeys(key[1], change_by(codec, factor))
            changes |= dict.fromkeys(key[2], "recompute")
            self._shares[key] = batch.share(changes) / factor**2
        self.steps.done()
        return self._shares[key]

    def _sample_kept(self, batch: MeasuredBatch, unit_class: UnitClass, codec: Codec) -> None:
        error = sum(self.errors[unit.name, codec.name][-1] for unit in unit_class.units)
        share = self._share(batch, codec, (unit.name for unit in unit_class.units))
        self.samples[id(unit_class), codec.name].append(share / error if error else 0.0)

    def _sample_rebuilt(self, batch: MeasuredBatch, unit_class: UnitClass, codec: Codec) -> None:
        """What making units again adds to the effect of their sources' own smaller copies."""
        of = {source.name for unit in unit_class.units for source in sources(self.graph, unit)}
        units = [unit for unit in unit_class.units if unit.name not in of]
        error = sum(self.source_error(unit, codec.name) for unit in units)
        if not error:
            return
        alone = self._share(batch, codec, of)
        together = self._share(batch, codec, of, (unit.name for unit in units))
        self.samples[id(unit_class), codec.name].append(max(0.0, together - alone) / error)

    def source_error(self, unit: RecoveryUnit, codec: str) -> float:
        """Mean squared error of what a unit is made from, in the last batch that was perturbed."""
        of = sources(self.graph, unit)
        return statistics.fmean(self.errors[source.name, codec][-1] for source in of)

    def _try(self, batch: MeasuredBatch) -> None:
        """Measure a random placement as it would be run."""
        codec = self.draw.choice(self.probes)
        placement = self._random_placement(f"compress:{codec.name}")
        kept = [name for name, action in placement.items() if action.startswith("compress:")]
        makers = self.interpreter.makers
        rebuilt = [name for name, do in placement.items() if do == "recompute" and name in makers]
        self.trials.append((placement, self._share(batch, codec, kept, rebuilt)))

    def _random_placement(self, compress: str) -> dict[str, str]:
        """An action for each kind of unit: one of those open to it, ``compress`` among them."""
        actions: dict[str, str] = {}
        placement: dict[str, str] = {}
        compressed = {unit.name for c in self.kept for unit in c.units}
        for name, unit in self.graph.units.items():
            if not unit.can_store:
                placement[name] = "recompute"
                continue
            open_to = [compress] if name in compressed else []
            open_to += ["recompute"] if unit.can_recompute and not unit.forced else []
            kind = unit.origin.kind
            if kind not in actions:
                actions[kind] = self.draw.choice([*open_to, "store"])
            placement[name] = actions[kind] if actions[kind] in open_to else "store"
        return placement
