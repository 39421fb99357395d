"""Gains fitted once more, to whole placements that were measured.

The gain of a class that was made inexact alone, on a batch or two, is off by a third or so, and a solver picks what
seems to risk least: of what was measured too low, more than its part. Placements as it chooses them, measured whole on
every batch, say how much too low, and of which classes.

Problem: placement t has the squared gradient error y[t] where its classes' measured gains predict Σ_c F[t,c]. Wanted
are factors on the gains, exp(θ[c]), and one on all, exp(θ[0]), with

    log y[t] = θ[0] + log Σ_c F[t,c]·exp(θ[c]) + b[batch of t] + e[t],

all independent: θ[c] Gaussian of deviation ``_CLASS``, b of ``_BATCH``, θ[0] of ``_COMMON``, and e of ``_REST`` with
the heavy tails of Student's t: a placement beyond all proportion (four bits where an exponential follows) moves little.
The most likely is found by Gauss-Newton steps, each a linear system in as many unknowns as there are placements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

_CLASS, _BATCH, _REST, _COMMON = 0.4, 0.2, 0.2, 1.0
"""Standard deviations of logarithms. Of classes and batches: as measured on small trained models."""
_FREEDOM = 4
"""Degrees of freedom of the tails."""
_STEPS = 12
_NORMAL = 1.4826
"""Standard deviation of Gaussian numbers over the median of their distances from the middle."""
_SMALL = 1e-3
"""A spread of no account."""
_CHANCE = 1e-3
"""That a batch exceeds what :func:`upper_factor` says of it."""
_USUAL, _USUAL_FREEDOM = 0.3, 4
"""Standard deviation, of logarithms, that batches and placements had on small trained models, and the number of batches
that it counts for."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Placements that were measured.

    Shapes: T placements, C classes.

    Attributes:
        parts: (T, C), what each class was predicted to add to the squared gradient error.
        measured: (T,), the squared gradient error.
        batches: (T,), which batch each was measured on.
    """

    parts: Tensor
    measured: Tensor
    batches: Tensor

    def factors(self) -> tuple[Tensor, float]:
        """Factors on the classes' gains, (C,), and the one on all."""
        count = len(self.measured)
        classes = torch.zeros(self.parts.shape[1], dtype=torch.float64)
        same_batch = (self.batches[:, None] == self.batches).double()
        fixed, trusted = _BATCH**2 * same_batch + _COMMON**2, torch.ones(count).double()
        for _ in range(_STEPS if count else 0):
            parts = self.parts * classes.exp()
            predicted = parts.sum(1)
            slopes = parts / predicted[:, None]
            wanted = self.measured.log() - predicted.log() + slopes @ classes
            noise = torch.diag(_REST**2 / trusted)
            weights = torch.linalg.solve(_CLASS**2 * slopes @ slopes.T + fixed + noise, wanted)
            classes = _CLASS**2 * slopes.T @ weights
            trusted = _trust(noise @ weights, _REST)
        factors = classes.exp()
        if not count:
            return factors, 1.0
        middle, spread = spread_of(self.measured / (self.parts @ factors))
        # Of a skewed spread, the mean.
        return factors, math.exp(middle + spread**2 / 2)

    def unseen_ratios(self) -> list[float]:
        """Measured over predicted for each placement, the factors fitted to the other batches' placements alone."""
        found = torch.empty_like(self.measured)
        for batch in sorted(set(self.batches.tolist())):
            held = self.batches == batch
            seen = Observations(self.parts[~held], self.measured[~held], self.batches[~held])
            classes, common = seen.factors()
            found[held] = self.measured[held] / (self.parts[held] @ classes * common)
        ratios: list[float] = found.tolist()
        return ratios


def spread_of(ratios: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of logarithms, as without the few that lie far out."""
    logs = ratios.log()
    middle, spread = logs.median(), (logs - logs.median()).abs().median() * _NORMAL
    for _ in range(_STEPS):
        trusted = _trust(logs - middle, max(float(spread), _SMALL))
        middle = (trusted * logs).sum() / trusted.sum()
        spread = ((trusted * (logs - middle) ** 2).sum() / len(logs)).sqrt()
    return float(middle), float(spread)


def upper_factor(ratios: Sequence[float], batches: int) -> float:
    """What the ratio of a new batch and placement exceeds with a chance of 1 in 1000.

    A bound on the next observation where logarithms above their median are half of a Gaussian: by Student's t with as
    many degrees of freedom as there are batches to learn from, however many placements each had. How far below others
    are, such as those of a batch with an unusually large gradient, says nothing of how far above one may be.

    Args:
        ratios: measured over predicted squared error, of placements predicted from other batches.
        batches: how many they are of.
    """
    logs = torch.tensor(ratios, dtype=torch.float64).log()
    freedom = batches - 1 + _USUAL_FREEDOM
    middle = float(logs.quantile(0.5))
    seen = 2 * float((logs - middle).clamp_min(0.0).square().mean())
    variance = ((batches - 1) * seen + _USUAL_FREEDOM * _USUAL**2) / freedom
    spread = math.sqrt(variance * (1 + 1 / batches))
    return math.exp(middle + student_quantile(1 - _CHANCE, freedom) * spread)


def beyond_usual(logs: Sequence[float]) -> float:
    """By what factor a class may exceed what is usual, as it differs more between batches than others do.

    With the chance of :func:`upper_factor`, of the variance beyond the usual one.

    Args:
        logs: logarithms of its gain, by batch.
    """
    count = len(logs)
    if count < 2:
        return 1.0
    freedom = count - 1 + _USUAL_FREEDOM
    squares = torch.tensor(logs, dtype=torch.float64).var().item() * (count - 1)
    variance = (squares + _USUAL_FREEDOM * _USUAL**2) / freedom
    spread = math.sqrt(max(0.0, variance - _USUAL**2) * (1 + 1 / count))
    return math.exp(student_quantile(1 - _CHANCE, freedom) * spread)


def student_quantile(chance: float, freedom: int) -> float:
    """Quantile of Student's t, from four degrees of freedom on within 1% to a chance of 0.999.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf(chance)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def _trust(away: Tensor, scale: float) -> Tensor:
    """Weights of residuals under Student's t: near one, and small far out."""
    return (_FREEDOM + 1) / (_FREEDOM + (away / scale) ** 2)
