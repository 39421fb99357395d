"""Policy-update exposure: how much an error in a row can move the gradient, before any backward.

A row (i, t) reaches the loss only through rows s ≥ t of its sequence, so
``E[i,t]² = Σ_{s≥t} c[i,s]²·n[i,s]²``: c the coefficient ∂L/∂log π of the token that row s predicts, n the
norm of that log-probability's gradient in the logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.base import PolicyLoss, at_least
from hilore_planner.grpo.batch import LossBatch, pack_padded
from hilore_planner.grpo.tiers import Tiers, make_tiers

Basis = Literal["on_policy", "bound", "fresh"]


@dataclass(frozen=True, slots=True)
class Exposure:
    """Exposure of the rows of one microbatch, padded (B, T) or packed (nnz,)."""

    rows: Tensor
    """E of each row."""
    live: Tensor
    """Booleans; False only where no later coefficient of the sequence can differ from zero."""
    coefficients: Tensor
    """c of each row, or its bound."""
    basis: Basis
    """What the coefficients are: exact at ratio one, a bound, or exact from fresh numbers."""
    cu_seqlens: Tensor | None = None
    """(S + 1,) of packed rows."""

    @property
    def row_counts(self) -> Tensor:
        """Rows of each sequence, (S,)."""
        if self.cu_seqlens is not None:
            return self.cu_seqlens.diff()
        return torch.full_like(self.rows[:, 0], self.rows.shape[1], dtype=torch.long)

    @property
    def sequence_squares(self) -> Tensor:
        """Σ E² over each sequence's rows, (S,)."""
        return self._by_sequence(self.rows.square())

    @property
    def live_sequences(self) -> Tensor:
        """(S,) booleans, True where any row is live."""
        return self._by_sequence(self.live.to(self.rows.dtype)) > 0

    def _by_sequence(self, values: Tensor) -> Tensor:
        if self.cu_seqlens is None:
            return values.sum(-1)
        owner = torch.repeat_interleave(self.row_counts)
        return values.new_zeros(self.row_counts.shape).index_add(0, owner, values)

    def tiers(self, count: int = 2) -> Tiers:
        """The sequences in order of exposure, cut into at most ``count`` live tiers.

        Raises: OptionError for a count below one.
        """
        at_least("tiers", count, 1)
        squares, live = self.sequence_squares.double().tolist(), self.live_sequences.tolist()
        return make_tiers(squares, self.row_counts.tolist(), live, count)


def exposure(
    loss: PolicyLoss,
    batch: LossBatch,
    *,
    log_probs: Tensor | None = None,
    assume: Literal["on_policy", "bound"] = "on_policy",
    ratio_limit: float = math.inf,
    sum_squared_probs: Tensor | None = None,
    vocab_size: int | None = None,
    cu_seqlens: Tensor | None = None,
) -> Exposure:
    """Exposure from what is known before the forward, or refined with fresh ``log_probs``.

    Shapes: ``log_probs`` and ``sum_squared_probs`` (Σπ² over the vocabulary) are (B, T), of responses
    alone or, with a mask of zero on the prompt, of whole sequences: then prompt rows come back too. With
    ``cu_seqlens`` the rows come back packed; see :func:`hilore_planner.grpo.batch.packed_batch`.

    Without ``log_probs`` the coefficients are those at ratio one, or with ``assume="bound"`` their
    bound over ratios up to ``ratio_limit``. Liveness holds under either: it comes from the bound,
    so from the final coefficient with its KL and entropy parts, never from the advantage.

    Raises: OptionError if ratio one does not fix the coefficients, if the bound is infinite
    somewhere (an unclipped side; give ``ratio_limit``), or if an entropy bonus lacks
    ``vocab_size``.
    """
    basis: Basis = assume if log_probs is None else "fresh"
    bound = loss.coefficient_bound(batch, ratio_limit)
    if log_probs is not None:
        values = loss.coefficient(log_probs, batch)
        alive, norm = values != 0, logit_norm(log_probs, sum_squared_probs)
    elif assume == "bound":  # the policy may have moved anywhere: π is not known either
        values, alive, norm = bound, bound != 0, logit_norm(None)
    else:
        values = loss.on_policy_coefficient(batch)
        alive, norm = bound != 0, logit_norm(batch.old_log_probs, sum_squared_probs)
    if not bool(torch.isfinite(values).all()):
        raise OptionError(
            f"{loss} does not bound its coefficients and ratio_limit is {ratio_limit}; "
            "accepted: a finite ratio_limit and no unbounded KL term, or assume='on_policy'"
        )
    squares = (values * norm).square()
    bonus = loss.entropy_weights(batch)
    if bonus is not None:
        squares = squares + (bonus * entropy_norm_bound(vocab_size)).square()
        alive = alive | (bonus != 0)
    found = Exposure(suffix_sum(squares).sqrt(), suffix_sum(alive.long()) > 0, values, basis)
    return found if cu_seqlens is None else packed(found, cu_seqlens)


def typical_tiers(exposures: Iterable[Exposure], count: int = 2) -> Tiers:
    """Tiers for microbatches such as these, of which each stands in order of its exposure.

    What is cut is the mean, over microbatches, of each place's share of the squared exposure. In a single one, the
    second winner may have next to none of it.

    Args:
        exposures: of padded microbatches of one shape.
        count: of live tiers, at most.

    Raises: OptionError for a count below one, no microbatch, or several numbers of sequences or rows.
    """
    at_least("tiers", count, 1)
    known = list(exposures)
    counts = {tuple(one.row_counts.tolist()) for one in known}
    rows = next(iter(counts), ())
    if len(counts) != 1 or len(set(rows)) != 1:
        raise OptionError(
            f"exposures have sequences of {sorted(counts)} rows; accepted: microbatches of one padded shape"
        )
    squares = torch.stack([one.sequence_squares.double() for one in known])
    live = torch.stack([one.live_sequences for one in known]).sort(1, descending=True).values
    total = squares.sum(1, keepdim=True)
    shares = (squares / total.where(total > 0, 1.0)).sort(1, descending=True).values
    return make_tiers(shares.mean(0).tolist(), list(rows), live.any(0).tolist(), count)


def packed(padded: Exposure, cu_seqlens: Tensor) -> Exposure:
    """The same exposure with its rows end to end, (nnz,)."""
    lengths = cu_seqlens.diff()
    return replace(
        padded,
        rows=pack_padded(padded.rows, lengths),
        live=pack_padded(padded.live, lengths),
        coefficients=pack_padded(padded.coefficients, lengths),
        cu_seqlens=cu_seqlens,
    )


def suffix_sum(values: Tensor) -> Tensor:
    """Σ over columns s ≥ t, (B, T)."""
    return values.flip(-1).cumsum(-1).flip(-1)


def logit_norm(log_probs: Tensor | None, sum_squared_probs: Tensor | None = None) -> Tensor | float:
    """Norm of ∂log π/∂logits, ``sqrt(1 − 2π + Σπ²)``, or its bound from what is known.

    Σπ² ≤ π² + (1 − π)², so ``√2·(1 − π)`` bounds it with π alone, and √2 without.
    """
    if log_probs is None:
        return math.sqrt(2.0)
    prob = torch.exp(log_probs).nan_to_num(nan=0.0)
    if sum_squared_probs is None:
        return math.sqrt(2.0) * (1 - prob).clamp(min=0.0)
    return (1 - 2 * prob + sum_squared_probs).clamp(min=0.0).sqrt()


def entropy_norm_bound(vocab_size: int | None) -> float:
    """Bound on the norm of ∂H/∂logits, whose entries are ``−π_j(log π_j + H)``.

    Its 1-norm is E|log π + H| ≤ √Var(log π), and that variance is at most ``¼·log²(V − 1) + 1``
    (Reeb and Wolf, 2015).

    Raises: OptionError without a vocabulary size.
    """
    if vocab_size is None or vocab_size < 2:
        raise OptionError(f"vocab_size is {vocab_size}; accepted with an entropy bonus: >= 2")
    return math.sqrt(0.25 * math.log(vocab_size - 1) ** 2 + 1)
