"""Every kind of head with a symbolic number of tokens: one graph, cut once, serves other lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.head.heads import Batch, Plain, assert_close, batch, site
from tests.head.test_forms import (
    adapter_head,
    cross_entropy_mean,
    drop_in,
    entropy_bonus,
    frozen_head,
    log_probs_returned,
    loops,
    packed,
    plain,
    sequence_softmax,
    sliced_logits,
    sliced_logits_sequence_level,
    tied,
)

Update = Callable[[Batch], Tensor]
EARLY = [
    plain,
    loops,
    cross_entropy_mean,
    drop_in,
    sliced_logits,
    tied,
    frozen_head,
    adapter_head,
    packed,
    entropy_bonus,
]
REBUILD = [sequence_softmax, sliced_logits_sequence_level, log_probs_returned]
VOCABULARIES = (32_000, 50_257, 128_256, 151_936, 100_003)


def gradients(run: Update, b: Batch) -> list[Tensor | None]:
    loss = run(b)
    inputs = [b.hidden, b.weight, b.bias]
    found = torch.autograd.grad(loss.sum() * 0.5, inputs, allow_unused=True)
    return [loss.detach(), *found]


@pytest.mark.parametrize(
    ("update", "form", "vocabulary"),
    [
        (update, form, VOCABULARIES[index % len(VOCABULARIES)])
        for form, updates in (("early", EARLY), ("rebuild", REBUILD))
        for index, update in enumerate(updates)
    ],
)
def test_other_lengths(update: Update, form: str, vocabulary: int) -> None:
    plain = Plain(chunks=3)
    run = plain.compile(update, dynamic=True)
    for tokens in (7, 11):
        b = batch(tokens=tokens, hidden=4, vocabulary=vocabulary)
        for value in (b.hidden, b.targets, b.old, b.mask):
            torch._dynamo.mark_dynamic(value, 1)
        for value in (b.weight, b.bias):
            torch._dynamo.mark_static(value)
        assert_close(gradients(run, b), gradients(update, b))
    (joint,) = plain.joint
    found = site(joint)
    assert found.form == form
    assert isinstance(found.rows, torch.SymInt)
