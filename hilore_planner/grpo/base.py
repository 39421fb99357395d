"""What every loss of the registry gives: the loss, its coefficients, their bound, its traits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.batch import LossBatch, require
from hilore_planner.grpo.ratio import inside
from hilore_planner.grpo.term import SlopeBound, Term, coefficients, weighted


@dataclass(frozen=True, slots=True)
class Traits:
    """What a configured loss allows; an empty reason says nothing stands in the way."""

    known_before_forward: bool
    """On policy (ratio one) the coefficients need nothing that the forward yields."""
    coupled: str = ""
    """Why a coefficient depends on fresh numbers of other tokens, so that a chunk of tokens
    does not suffice to compute it."""
    whole_sequence: bool = False
    """Live tokens may not be cut off a sequence, because they enter its other tokens' terms."""
    whole_batch: str = ""
    """Why rows may not be dropped, because they enter other sequences' terms."""
    approximate: str = ""
    """Why the closed form is not the derivative itself."""
    reads_log_probs: bool = False
    """On policy it still needs the log-probabilities themselves, not only their ratio."""
    keeps_alive: str = ""
    """What gives a gradient to tokens of zero advantage."""


class PolicyLoss(ABC):
    """A configured loss of one framework.

    Shapes: log-probabilities, coefficients and bounds are (B, T); the loss is the scalar that
    ``backward`` is called on. Subclasses are frozen dataclasses that give the pieces below.
    """

    __slots__ = ()

    def __str__(self) -> str:
        """The class and the options that differ from their defaults."""
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What this configuration allows."""

    @abstractmethod
    def token_weights(self, batch: LossBatch) -> Tensor:
        """Mask over normaliser, (B, T): what aggregation multiplies each token's loss by."""

    @abstractmethod
    def policy(self, log_probs: Tensor, batch: LossBatch) -> Term:
        """The policy-gradient part."""

    @abstractmethod
    def policy_bound(self, batch: LossBatch, ratio_limit: float) -> SlopeBound:
        """Bounds on the slopes of :meth:`policy` over all ratios up to ``ratio_limit``."""

    def gate(self, log_probs: Tensor, batch: LossBatch) -> Tensor | None:
        """A constant factor on the policy part, (B, T) or (B, 1)."""
        return None

    def gate_bound(self, batch: LossBatch) -> Tensor | None:
        """The largest absolute value :meth:`gate` may take, known before the forward."""
        return None

    def divergence(self, log_probs: Tensor, batch: LossBatch) -> Term | None:
        """The KL part, its coefficient included."""
        return None

    def divergence_bound(self) -> float:
        """Bound on the absolute slope of :meth:`divergence`; zero if there is none."""
        return 0.0

    def entropy_weights(self, batch: LossBatch) -> Tensor | None:
        """∂L/∂entropy, (B, T), negative for a bonus; None if the loss has no entropy part."""
        return None

    def weights(self, batch: LossBatch) -> Tensor:
        """The batch's own weights if it carries some, else :meth:`token_weights`."""
        return self.token_weights(batch) if batch.weights is None else batch.weights

    def divergence_weights(self, batch: LossBatch) -> Tensor:
        """What aggregation multiplies each token's divergence by, (B, T)."""
        return self.weights(batch)

    def loss(self, log_probs: Tensor, batch: LossBatch) -> Tensor:
        """The scalar loss, differentiable in ``log_probs`` and in the batch's entropies."""
        log_probs = inside(log_probs, batch)
        weights = self.weights(batch)
        policy = self.policy(log_probs, batch).value
        gate = self.gate(log_probs.detach(), batch)
        total = ((policy if gate is None else policy * gate) * weights).sum()
        divergence = self.divergence(log_probs, batch)
        if divergence is not None:
            total = total + (divergence.value * self.divergence_weights(batch)).sum()
        bonus = self.entropy_weights(batch)
        if bonus is not None:
            entropies = require(batch, "entropies", type(self).__name__)
            total = total + (inside(entropies, batch) * bonus).sum()
        return total

    @torch.no_grad()
    def coefficient(self, log_probs: Tensor, batch: LossBatch) -> Tensor:
        """∂L/∂log π of each token in closed form, (B, T), from fresh log-probabilities."""
        log_probs = inside(log_probs, batch)
        weights = self.weights(batch).expand_as(log_probs)
        gate = self.gate(log_probs, batch)
        gated = weights if gate is None else weights * gate
        total = coefficients(gated, self.policy(log_probs, batch))
        divergence = self.divergence(log_probs, batch)
        if divergence is None:
            return total
        return total + coefficients(self.divergence_weights(batch), divergence)

    @torch.no_grad()
    def on_policy_coefficient(self, batch: LossBatch) -> Tensor:
        """:meth:`coefficient` at ratio one, before any forward.

        Raises: OptionError if the loss needs log-probabilities that the batch lacks.
        """
        if not self.traits.known_before_forward:
            raise OptionError(
                f"{self} has coefficients that only the forward's numbers fix; pass log_probs, "
                "or use their bound"
            )
        if self.traits.reads_log_probs:
            old = require(batch, "old_log_probs", type(self).__name__)
        else:
            old = torch.zeros_like(batch.mask, dtype=batch.dtype)
        return self.coefficient(old, replace(batch, old_log_probs=old))

    @torch.no_grad()
    def coefficient_bound(self, batch: LossBatch, ratio_limit: float = math.inf) -> Tensor:
        """A bound on the size of c, (B, T), whatever the forward yields.

        Zero only where c must be zero. Infinite where neither the loss (an unclipped side) nor
        ``ratio_limit`` limits the ratio.
        """
        weights = self.weights(batch).abs()
        gate = self.gate_bound(batch)
        gated = weights if gate is None else weights * gate
        total = coefficients(gated, self.policy_bound(batch, ratio_limit))
        divergence = self.divergence_bound()
        if divergence == 0:
            return total
        weights = self.divergence_weights(batch).abs()
        return total + weighted(weights, torch.full_like(weights, divergence))


def between(name: str, value: float, low: float, high: float) -> None:
    """Raise OptionError unless ``low`` ≤ ``value`` ≤ ``high``."""
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}; accepted: {low} to {high}")


def choices(name: str, value: object, accepted: tuple[str, ...]) -> None:
    """Raise OptionError unless ``value`` is one of ``accepted``."""
    if value not in accepted:
        raise OptionError(f"{name} is {value!r}; accepted: {', '.join(accepted)}")


def at_least(name: str, value: float | None, minimum: float, *, above: bool = False) -> None:
    """Raise OptionError unless ``value`` is None, or a number ≥ ``minimum`` (> with ``above``)."""
    if value is not None and not (value > minimum if above else value >= minimum):
        raise OptionError(f"{name} is {value}; accepted: {'>' if above else '>='} {minimum}")
