"""The cut head against the whole one, static shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.head.heads import (
    Batch,
    Cutter,
    assert_equal_gradients,
    batch,
    gradients,
    gspo,
    largest_value,
    ppo,
    responses,
)


def logsumexp_gather(logits: Tensor, targets: Tensor) -> Tensor:
    picked = logits.gather(-1, targets[..., None])[..., 0]
    return picked - torch.logsumexp(logits, -1)


def log_softmax_gather(logits: Tensor, targets: Tensor) -> Tensor:
    return F.log_softmax(logits, -1).gather(-1, targets[..., None]).squeeze(-1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return -flat.view(targets.shape)


FORMS = [logsumexp_gather, log_softmax_gather, cross_entropy]
Pick = Callable[[Tensor, Tensor], Tensor]


@pytest.mark.parametrize("pick", FORMS)
@pytest.mark.parametrize("loss", [ppo, gspo])
@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
def test_gradients_equal_the_whole_head(
    pick: Pick, loss: Callable[[Tensor, Batch], Tensor], chunks: int
) -> None:
    b = batch()

    def update() -> Tensor:
        return loss(pick(responses(b) @ b.weight.t(), b.targets), b)

    cutter = Cutter(chunks)
    inputs = [b.hidden, b.weight]
    got = gradients(cutter.compiled(update), inputs, scale=3.0)
    assert_equal_gradients(got, gradients(update, inputs, scale=3.0))
    assert cutter.site.form == ("early" if loss is ppo else "rebuild")
    rows = b.targets.numel()
    for half in cutter.halves[0]:
        assert largest_value(half) <= 503 * max(-(-rows // chunks), 8)
