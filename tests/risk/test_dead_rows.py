"""Rows said to be dead are exactly those whose activations get no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hilore_planner.grpo.exposure import exposure
from hilore_planner.grpo.registry import LOSSES
from tests.grpo.batches import plain, random_batch
from tests.grpo.tiny import VOCAB, Tiny

DRAWN_AT_RANDOM = {"verl/clip_cov"}


@pytest.mark.parametrize("name", sorted(set(LOSSES) - DRAWN_AT_RANDOM))
def test_rows_are_dead_where_the_activation_has_no_gradient(name: str) -> None:
    loss, model = plain(name), Tiny()
    dead = 0
    for seed in range(4):
        batch = random_batch(seed, width=6).batch
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(VOCAB, (6, 6), generator=generator)
        targets = torch.randint(VOCAB, (6, 6), generator=generator)
        log_probs, activation = _run(model, ids, targets)
        (gradient,) = torch.autograd.grad(
            loss.loss(log_probs, batch), activation, allow_unused=True, materialize_grads=True
        )
        live = exposure(loss, batch, log_probs=log_probs.detach()).live
        assert torch.equal(live, gradient.ne(0).any(-1))
        dead += int((~live).sum())
    assert dead > 0


def _run(model: Tiny, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and what the first layer reads, (B, T, D)."""
    found: list[Tensor] = []
    handle = model.embed.register_forward_hook(lambda *given: found.append(given[2]))
    log_probs = model(ids, targets)
    handle.remove()
    return log_probs, found[0]
