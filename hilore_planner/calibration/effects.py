"""What inexact units do to one batch's gradient, and whether they act in proportion.

Where an error passes through an exponential, as in attention, twice the error can move the gradient far more than twice
as far. How far then differs much between batches: no gain tells it, and no plan should count on one.

In half precision whatever is made of a changed value is rounded otherwise. That moves the gradient by about as much
however small the change is. Errors are magnified until it matters little, and of placements it is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hilore_planner.calibration.interpret import Change
from hilore_planner.calibration.measure import MeasuredBatch
from hilore_planner.calibration.round_trip import change_by
from hilore_planner.calibration.trials import LARGEST_TELLING
from hilore_planner.codec_names import read_tiers
from hilore_planner.passes.codecs import codec_for, codec_named
from hilore_planner.passes.units import RecoveryGraph

_DOUBLED = 2.0
"""Multiple of a class's error up to which it is to act in proportion."""
_IN_PROPORTION = 1.1
"""By how much the squared effect of twice an error may exceed four times that of the error."""
_SMALL = 0.01**2
"""What doubled errors may do for each unit, over their squared factor, in parts of the squared gradient: no matter."""
_CLASS_ERROR, _PLACEMENT_ERROR = 0.2, 0.05
"""Relative errors of values to which those of a class, and of a whole placement, are magnified in half precision: as
large as doubled ones of int4; and such as act in proportion together."""
_LIFTED = 0.05**2
"""Squared gradient error to which a placement's is magnified, where it would be out of proportion."""
_FINER = 4.0
"""Part of a placement's errors that moves a half-precision gradient by little more than rounding."""
_WHOLLY_WRONG = 1e6
"""Squared gradient error that stands for all beyond, and for what is no number."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a class of units does alone.

    Attributes:
        share: squared relative error of the gradient.
        factor: the multiple of the class's error that it was measured with.
        is_proportional: whether twice the error moves the gradient about twice as far.
    """

    share: float
    factor: float = 1.0
    is_proportional: bool = True


@dataclass(slots=True)
class Effects:
    """Measures on one batch, each thing once: what a class is made from is often another class."""

    graph: RecoveryGraph
    batch: MeasuredBatch
    rounding: float | None = None
    """Squared gradient error of rounding alone in half precision; None: not known yet."""
    _known: dict[tuple[frozenset[tuple[str, str]], frozenset[str], float], float] = field(
        default_factory=dict
    )

    def share(
        self, kept: Mapping[str, str], rebuilt: Iterable[str] = (), factor: float = 1.0
    ) -> float:
        """Squared relative gradient error with units kept by codecs and others made again from them.

        Measured with the copies' errors ``factor`` times as large, and brought back in proportion.
        """
        key = (frozenset(kept.items()), frozenset(rebuilt), factor)
        if key not in self._known:
            changes: dict[str, Change] = {
                name: change_by(
                    codec_for(self.graph.units[name], codec),
                    factor,
                    is_finite=self.batch.is_finite,
                )
                for name, codec in kept.items()
            }
            share = self.batch.share(changes | dict.fromkeys(key[1], "recompute"))
            is_number = share <= _WHOLLY_WRONG
            self._known[key] = (share if is_number else _WHOLLY_WRONG) / factor**2
        return self._known[key]

    def of_class(
        self, kept: Mapping[str, str], again: Collection[str] = (), *, tested: float = 0.0
    ) -> Effect:
        """The effect of a class, whose error is doubled to see whether it acts in proportion.

        In half precision larger multiples are tried first, and the one that is in proportion counts.

        Args:
            kept: its units, or their sources, and what keeps them.
            again: its units, if they are made again.
            tested: multiple of the class's error up to which it is known to act in proportion.
        """
        lifted = self._lifted(kept, _CLASS_ERROR)
        # Tiers are made of codecs that are looked at alone.
        if any(read_tiers(codec) is not None for codec in kept.values()):
            tested = lifted
        if tested >= 1:
            factor = min(lifted, tested)
            return Effect(self.share(kept, again, factor), factor)
        factor = max(_DOUBLED, lifted)
        share = self.share(kept, again, factor)
        while share > _SMALL * (len(again) or len(kept)):
            lower = max(factor / 2, 1.0)
            less = self.share(kept, again, lower)
            if share <= _IN_PROPORTION * less and share * factor**2 < _WHOLLY_WRONG:
                return Effect(less, lower) if lifted == 1.0 else Effect(share, factor)
            if factor <= _DOUBLED:
                return Effect(less, lower, is_proportional=False)
            share, factor = less, lower
        return Effect(share, factor)

    def of_placement(self, kept: Mapping[str, str], rebuilt: Collection[str]) -> float:
        """Squared relative gradient error of a whole placement; 0 where rounding hides it.

        In half precision of twice its errors at least, in which classes are in proportion.
        """
        factor = self._lifted(kept, _PLACEMENT_ERROR)
        if self.batch.is_half:
            factor = max(_DOUBLED, factor)
        share = self.share(kept, rebuilt, factor)
        if factor > 1 and share * factor**2 > LARGEST_TELLING:
            factor = max(1.0, math.sqrt(_LIFTED / share))
            share = self.share(kept, rebuilt, factor)
        rounding = (
            self._rounding_of(kept, rebuilt, factor) / factor**2 if self.batch.is_half else 0.0
        )
        return share - rounding if share > 2 * rounding else 0.0

    def _rounding_of(
        self, kept: Mapping[str, str], rebuilt: Collection[str], factor: float
    ) -> float:
        """What rounding alone does: about the same in all placements, as nearly all of backward is rounded otherwise.

        Told from one placement, with its errors at two multiples.
        """
        if self.rounding is None:
            finer = factor / _FINER
            all_of_it = self.share(kept, rebuilt, factor) * factor**2
            less = self.share(kept, rebuilt, finer) * finer**2
            self.rounding = max(0.0, (_FINER**2 * less - all_of_it) / (_FINER**2 - 1))
        return self.rounding

    def _lifted(self, kept: Mapping[str, str], error: float) -> float:
        """The multiple of the copies' errors that stands out of rounding, none beyond a relative ``error``."""
        if not self.batch.is_half:
            return 1.0
        coarsest = max(codec_named(codec).relative_error for codec in kept.values())
        return max(1.0, error / coarsest)
