"""Whole placements such as a solver might choose, which show how far the risks of single classes add up."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hilore_planner.calibration.model import CalibratedRisk
from hilore_planner.solvers.problem import compress_action

_TRIED_ERRORS = (2e-3, 0.06)
"""Gradient errors that placements which are tried are meant to have: those of plans."""
_SMALLEST_TELLING, LARGEST_TELLING = 1e-9, 0.04
"""Squared gradient errors that show something of plans: below is rounding, above errors are not in proportion."""
_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Trial:
    """A placement that was measured.

    Attributes:
        batch: which it was measured on.
        share: squared relative error of the gradient.
    """

    placement: dict[str, str]
    batch: int
    share: float


@dataclass(frozen=True, slots=True)
class Form:
    """One codec's offer for one unit."""

    codec: str
    spared_bytes: int
    risk: float


Offers = Mapping[str, Sequence[Form]]
"""By unit."""


def is_telling(squared_error: float) -> bool:
    """Whether a placement of this predicted squared gradient error shows something of those that plans have."""
    return _SMALLEST_TELLING < squared_error < LARGEST_TELLING


def offers_of(model: CalibratedRisk, spared_bytes: Mapping[tuple[str, str], int]) -> Offers:
    """What copies spare, by unit and codec, and what they risk."""
    forms: dict[str, list[Form]] = defaultdict(list)
    for (name, codec), spared in spared_bytes.items():
        risk = model.risk(model.graph.units[name], codec)
        forms[name].append(Form(codec, spared, risk))
    return forms


def draw_placement(model: CalibratedRisk, offers: Offers, draw: random.Random) -> dict[str, str]:
    """What a solver might choose: for some gradient error, the copies that spare most bytes for their risk.

    Which kinds of units are wanted in fewer bytes is drawn, as a cap decides it; others are stored, or made again where
    that does not risk too much.

    Args:
        model: prices what is made again.
        offers: of copies.
        draw: of random numbers.
    """
    graph = model.graph
    part, wanted_part = draw.random(), draw.uniform(0.3, 1.0)
    kinds = sorted({unit.origin.kind for unit in graph.units.values()})
    again = {kind for kind in kinds if draw.random() < part}
    wanted = {kind for kind in kinds if draw.random() < wanted_part}
    forms = {
        name: offered for name, offered in offers.items() if graph.units[name].origin.kind in wanted
    }
    least, most = (math.log(error) for error in _TRIED_ERRORS)
    price = _price(forms, math.exp(2 * draw.uniform(least, most)))
    chosen = _best(forms, price)
    placement: dict[str, str] = {}
    for name, unit in graph.units.items():
        if not unit.can_store:
            placement[name] = "recompute"
        elif name in chosen:
            placement[name] = compress_action(chosen[name].codec)
        else:
            is_again = unit.origin.kind in again and unit.can_recompute and not unit.forced
            placement[name] = "recompute" if is_again else "store"
    return placement | dict.fromkeys(_too_dear(model, placement, price), "store")


def _too_dear(model: CalibratedRisk, placement: Mapping[str, str], price: float) -> Iterator[str]:
    """Units made again from smaller copies, whose risk is not worth the bytes of storing them, or cannot be told."""
    for part in model.parts(placement):
        unit = model.graph.units[part.unit]
        is_again = placement[part.unit] == "recompute" and unit.can_store
        is_dear = part.is_erratic or price * model.mean(part.risks) > unit.kept_bytes
        if is_again and is_dear:
            yield part.unit


def _price(forms: Offers, budget: float) -> float:
    """Of risk in bytes, at which each unit's best form makes up a risk of about ``budget``."""
    low, high = -10.0, 50.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        risk = sum(form.risk for form in _best(forms, math.exp(middle)).values())
        low, high = (low, middle) if risk <= budget else (middle, high)
    return math.exp(high)


def _best(forms: Offers, price: float) -> dict[str, Form]:
    """By unit, the form of most bytes less priced risk; units that none spares anything of are left out."""
    found = {}
    for name, offered in forms.items():
        best = max(offered, key=lambda form: form.spared_bytes - price * form.risk)
        if best.spared_bytes > price * best.risk:
            found[name] = best
    return found
