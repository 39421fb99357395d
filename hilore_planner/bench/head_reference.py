"""A batch for a head, and the gradients of its loss in float64, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hilore_planner.bench.head_ways import HeadBatch, Level, policy_loss

_ROWS = 512
"""At a time: 0.6 GiB of float64 logits of a vocabulary of 152k."""
_LOGIT_DEVIATION = 2.0
_LOG_RATIOS = (-0.3, -0.1, 0.1, 0.1, -0.1, 0.3, 0.1, -0.1)
"""One of them for each token. A quarter are beyond the clip's bounds, none so near that rounded logits cross one."""


def head_batch(
    *,
    sequences: int,
    tokens: int,
    hidden: int,
    vocabulary: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
) -> HeadBatch:
    """Random hidden states and weights of a trained model's scale, and tokens drawn alike for all of it."""
    generator = torch.Generator(device).manual_seed(seed)
    like = {"generator": generator, "device": device}
    states = torch.randn(sequences, tokens, hidden, **like).to(dtype)  # type: ignore[call-overload]
    weight = torch.randn(vocabulary, hidden, **like)  # type: ignore[call-overload]
    weight = (weight * _LOGIT_DEVIATION / hidden**0.5).to(dtype)
    targets = torch.randint(vocabulary, (sequences, tokens), **like)  # type: ignore[call-overload]
    advantages = torch.randn(sequences, **like)  # type: ignore[call-overload]
    batch = HeadBatch(
        states, weight, targets, torch.zeros_like(targets, dtype=torch.float32), advantages
    )
    choice = torch.randint(len(_LOG_RATIOS), (sequences, tokens), **like)  # type: ignore[call-overload]
    gap = torch.tensor(_LOG_RATIOS, device=device, dtype=torch.float64)[choice]
    old = (_log_probs(batch).view_as(targets) - gap).float()
    return HeadBatch(states.requires_grad_(), weight.requires_grad_(), targets, old, advantages)


def exact_gradients(batch: HeadBatch, level: Level) -> tuple[Tensor, Tensor]:
    """∂loss/∂hidden (B, T, D) and ∂loss/∂weight (V, D), float64: closed form, log-probabilities first."""
    logp = _log_probs(batch).view_as(batch.old).requires_grad_()
    loss = policy_loss(logp, batch.old.double(), batch.advantages.double(), level)
    (coefficients,) = torch.autograd.grad(loss, logp)
    weight = batch.weight.detach().double()
    of_weight, of_hidden = torch.zeros_like(weight), []
    rows = torch.split(coefficients.flatten(), _ROWS)
    for (hidden, logits, targets), coefficient in zip(_rows(batch), rows, strict=True):
        of_logits = -torch.softmax(logits, -1) * coefficient[:, None]
        of_logits.scatter_add_(1, targets[:, None], coefficient[:, None])
        of_hidden.append(of_logits @ weight)
        of_weight.addmm_(of_logits.t(), hidden)
    return torch.cat(of_hidden).view_as(batch.hidden), of_weight


def _log_probs(batch: HeadBatch) -> Tensor:
    made = [
        logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, -1)
        for _, logits, targets in _rows(batch)
    ]
    return torch.cat(made)


def _rows(batch: HeadBatch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Hidden states, logits and targets of some rows after others."""
    weight = batch.weight.detach().double().t()
    hidden = torch.split(batch.hidden.detach().flatten(0, 1), _ROWS)
    for states, targets in zip(hidden, torch.split(batch.targets.flatten(), _ROWS), strict=True):
        exact = states.double()
        yield exact, exact @ weight, targets


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Norm of the difference, relative to the exact one's; parts at a time, in float64."""
    difference, norm = 0.0, 0.0
    for mine, theirs in zip(_parts(found), _parts(exact), strict=True):
        difference += float((mine.double() - theirs).square().sum())
        norm += float(theirs.square().sum())
    return math.sqrt(difference / norm)


def _parts(value: Tensor) -> tuple[Tensor, ...]:
    return torch.split(value.flatten(0, -2), 16_384)
