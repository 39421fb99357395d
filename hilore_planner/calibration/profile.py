"""The risk profile: what calibration found, as a JSON file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

import msgspec

from hilore_planner import plan_file
from hilore_planner.errors import ProfileError

SCHEMA_VERSION = 1
_SMALLEST = 1e-30
"""Squared error of no account."""

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class ClassRisk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Units that are the same but for the layer, over a range of layers.

    Their risk is gain times error: the error is what a codec does to the units' values, the gain is what
    the gradient makes of it.
    """

    kind: str
    """Units' names with the layer's index replaced by ``*``."""
    first_layer: int | None
    last_layer: int | None
    units: Count
    """How many there are."""
    gains: Annotated[dict[str, NotNegative], msgspec.Meta(min_length=1)]
    """By codec it was measured with: squared relative error of the gradient over the units' summed errors."""
    errors: dict[str, NotNegative]
    """By codec: mean squared relative error of a unit's value, rows weighted by their squared exposure."""
    erratic: tuple[str, ...] = ()
    """Codecs whose error acts out of proportion, which differs much between batches: none is planned with."""
    margin: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    """Factor on the profile's, as the gain differs more between batches than those of most classes."""
    places: tuple[NotNegative, ...] = ()
    """Of values in tiers: the gain of each sequence over that of all, the most exposed first; empty: it is the same."""

    def holds(self, layer: int | None) -> bool:
        """Whether a unit of this kind in ``layer`` belongs to the class."""
        if layer is None or self.first_layer is None or self.last_layer is None:
            return layer is None and self.first_layer is None
        return self.first_layer <= layer <= self.last_layer

    def gain(self, codec: str) -> float:
        """The gain for a codec: that of its family which was measured at about its error; the largest if none was."""
        same = {known: gain for known, gain in self.gains.items() if family(known) == family(codec)}
        return self._at(self.errors[codec], same) if same else max(self.gains.values())

    def gain_in_tiers(self, codec: str) -> float:
        """The gain for a codec of tiers, of sequences whose place has the gain of all.

        It is that of its family's finest: tiers round stochastically, so that coarse codecs act as fine ones do.
        """
        same = [known for known in self.gains if family(known) == family(codec)]
        if not same:
            return max(self.gains.values())
        return self.gains[min(same, key=lambda known: self.errors[known])]

    def gain_at(self, error: float) -> float:
        """The gain for an error by any codec."""
        return self._at(error, self.gains)

    def is_erratic(self, error: float) -> bool:
        """Whether an error by any codec is about as large as those that act out of proportion."""
        return self._nearest(error, self.gains) in self.erratic

    def _at(self, error: float, gains: dict[str, float]) -> float:
        return gains[self._nearest(error, gains)]

    def _nearest(self, error: float, gains: dict[str, float]) -> str:
        """The codec whose measured error is next to this one, in proportion; of two as near, the larger."""

        def away(codec: str) -> tuple[float, float]:
            measured = max(self.errors.get(codec, 0.0), _SMALLEST)
            return abs(math.log(measured / max(error, _SMALLEST))), -measured

        return min(gains, key=away)


def family(codec: str) -> str:
    """``int``, ``fp`` or ``bf``, whose errors fall on other values.

    Where steps are even small values are as wrong as large ones; where they grow with the value they are not; and where
    there is no scale, the largest is as wrong as others, on which a softmax depends.
    """
    return codec.rstrip("_em0123456789")


class RiskProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What errors in an update's activations do to its gradient."""

    kept: tuple[ClassRisk, ...]
    """Classes of units that backward reads from smaller copies."""
    rebuilt: tuple[ClassRisk, ...]
    """Classes of units made again from smaller copies of others: what that adds; errors are those of the copies."""
    trials: tuple[Positive, ...]
    """Measured over predicted squared error of whole placements, predicted from other batches alone."""
    additivity: Positive
    """Factor from summed risks to the squared error of a whole placement on a typical batch."""
    margin: Annotated[float, msgspec.Meta(ge=1)]
    """Factor from there to what hardly any batch exceeds."""
    shares: tuple[NotNegative, ...]
    """Of a batch's squared exposure, by sequence, the most exposed first; empty where it was not given."""
    batches: Count
    codecs: tuple[str, ...]
    torch: str
    device: str
    schema: int = SCHEMA_VERSION

    def find(
        self, classes: tuple[ClassRisk, ...], kind: str, layer: int | None
    ) -> ClassRisk | None:
        """The class, of :attr:`kept` or :attr:`rebuilt`, that a unit belongs to; None if it was not calibrated."""
        return next((c for c in classes if c.kind == kind and c.holds(layer)), None)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a profile's file.

        Raises:
            ProfileError: it cannot be read, is no profile, has another schema, or a field is wrong.
        """
        try:
            data = Path(path).read_bytes()
            schema = msgspec.json.decode(data, type=_Versioned).schema
            if schema != SCHEMA_VERSION:
                raise ProfileError(
                    f"risk profile {path} has schema {schema}; accepted: {SCHEMA_VERSION}; calibrate anew"
                )
            return msgspec.json.decode(data, type=cls)
        except OSError as error:
            raise ProfileError(f"cannot read risk profile {path}: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProfileError(
                f"{path} is no risk profile: {error}; accepted: a file that hilore.calibrate(...).save wrote"
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the profile, whole or not at all.

        Raises:
            PlanFileError: the file cannot be written.
        """
        plan_file.write(Path(path), self)


class _Versioned(msgspec.Struct):
    schema: int
