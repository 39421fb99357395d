"""Every way to write a head and a loss: the cut graph computes what the whole one does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hilore_planner.grpo.head import log_probs
from tests.head.heads import (
    Batch,
    Joint,
    assert_close,
    batch,
    capture,
    cross_entropy,
    entropy,
    gspo,
    log_softmax_gather,
    log_softmax_of_each,
    logsumexp_gather,
    logsumexp_of_each,
    ppo,
    responses,
    site,
    wide_alive,
)


def logits_of(b: Batch) -> Tensor:
    return responses(b) @ b.weight.t()


# One update each: name, what it computes, the form expected.
def plain(b: Batch) -> Tensor:
    return ppo(logsumexp_gather(logits_of(b), b.targets), b)


def softmax(b: Batch) -> Tensor:
    return ppo(log_softmax_gather(logits_of(b), b.targets), b)


def loops(b: Batch) -> Tensor:
    return ppo(logsumexp_of_each(logits_of(b) / 0.7, b.targets), b)


def loops_of_softmax(b: Batch) -> Tensor:
    return ppo(log_softmax_of_each(logits_of(b), b.targets), b)


def loops_sequence_level(b: Batch) -> Tensor:
    return gspo(logsumexp_of_each(logits_of(b), b.targets), b)


def nll(b: Batch) -> Tensor:
    return ppo(cross_entropy(logits_of(b), b.targets), b)


def cross_entropy_mean(b: Batch) -> Tensor:
    flat = logits_of(b).flatten(0, 1)
    return F.cross_entropy(flat, torch.where(b.mask > 0, b.targets, -100).flatten())


def softcap_temperature(b: Batch) -> Tensor:
    logits = 5 * torch.tanh(logits_of(b) / 5) / 0.7
    return ppo(logsumexp_gather(logits, b.targets), b)


def bias(b: Batch) -> Tensor:
    logits = F.linear(responses(b), b.weight, b.bias)
    return ppo(log_softmax_gather(logits, b.targets), b)


def drop_in(b: Batch) -> Tensor:
    made = log_probs(responses(b), b.weight, b.targets, temperature=0.7, bias=b.bias, softcap=30.0)
    return ppo(made, b)


def tied(b: Batch) -> Tensor:
    hidden = responses(b) + F.embedding(b.targets, b.weight)
    return ppo(log_probs(hidden, b.weight, b.targets), b)


def frozen_head(b: Batch) -> Tensor:
    return ppo(log_probs(responses(b), b.weight.detach(), b.targets), b)


def frozen_hidden(b: Batch) -> Tensor:
    return ppo(log_probs(responses(b).detach(), b.weight, b.targets), b)


def adapter_head(b: Batch) -> Tensor:
    """Low-rank adapter on a frozen head: two matmuls of vocabulary size."""
    hidden = responses(b)
    logits = hidden @ b.weight.detach().t() + (hidden @ b.weight[:4].t()) @ b.weight[:, :4].t()
    return ppo(logsumexp_gather(logits, b.targets), b)


def dropout(b: Batch) -> Tensor:
    """Random numbers before the head and in the loss, drawn as Inductor draws them."""
    hidden = F.dropout(responses(b), 0.3)
    keep = F.dropout(b.mask, 0.3)
    return (log_probs(hidden, b.weight, b.targets) * keep * b.advantages[:, None]).sum()


def packed(b: Batch) -> Tensor:
    """All sequences in one row, as (1, N)."""
    hidden = responses(b).flatten(0, 1)[None]
    made = log_probs(hidden, b.weight, b.targets.flatten()[None]).view(b.targets.shape)
    return ppo(made, b)


def token_mean(b: Batch) -> Tensor:
    """DAPO's aggregation, with the k3 KL to a reference."""
    logp = log_probs(responses(b), b.weight, b.targets)
    ratio = torch.exp(logp - b.old)
    gap = b.old - 0.1 - logp
    token = -torch.min(
        ratio * b.advantages[:, None], ratio.clamp(0.8, 1.28) * b.advantages[:, None]
    )
    token = token + 0.04 * (torch.exp(gap) - gap - 1)
    return (token * b.mask).sum() / b.mask.sum().clamp(min=1)


def cispo(b: Batch) -> Tensor:
    """A detached, capped ratio weighs the log-probability itself."""
    logp = log_probs(responses(b), b.weight, b.targets)
    weight = torch.exp(logp - b.old).clamp(max=5.0).detach()
    return -(weight * b.advantages[:, None] * logp * b.mask).sum() / b.mask.sum()


def sliced_logits(b: Batch) -> Tensor:
    """The whole sequence goes through the head, and the prompt is cut off afterwards."""
    logits = 5 * torch.tanh(torch.tanh(b.hidden) @ b.weight.t() / 5)
    return ppo(log_softmax_gather(logits[:, -b.targets.shape[1] :], b.targets), b)


def twice_sliced_logits(b: Batch) -> Tensor:
    """The last position is cut off first, then the prompt."""
    logits = torch.tanh(b.hidden) @ b.weight.t()
    logits = logits[:, :-1][:, -b.targets.shape[1] :]
    return ppo(log_softmax_gather(logits, b.targets), b)


def sliced_logits_sequence_level(b: Batch) -> Tensor:
    logits = F.linear(torch.tanh(b.hidden), b.weight, b.bias)
    return gspo(logsumexp_gather(logits[:, 1:-1], b.targets), b)


def entropy_bonus(b: Batch) -> Tensor:
    logits = logits_of(b)
    logp = logsumexp_gather(logits, b.targets)
    return ppo(logp, b) - 0.01 * (entropy(logits) * b.mask).sum() / b.mask.sum()


def entropy_logged(b: Batch) -> tuple[Tensor, Tensor]:
    logits = logits_of(b)
    return ppo(logsumexp_gather(logits, b.targets), b), entropy(logits).detach().mean()


def entropy_returned(b: Batch) -> tuple[Tensor, Tensor]:
    """Nobody will differentiate it, but it may be: it has a tangent."""
    logits = logits_of(b)
    return ppo(logsumexp_gather(logits, b.targets), b), entropy(logits)


def sequence_level(b: Batch) -> Tensor:
    return gspo(logsumexp_gather(logits_of(b), b.targets), b)


def sequence_softmax(b: Batch) -> Tensor:
    return gspo(log_softmax_gather(5 * torch.tanh(logits_of(b) / 5), b.targets), b)


def log_probs_returned(b: Batch) -> Tensor:
    return log_probs(responses(b), b.weight, b.targets)


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad.clamp(-0.01, 0.01)


def clipped_gradient(b: Batch) -> Tensor:
    """A custom function that is not linear in the gradient."""
    made = _Clip.apply(log_probs(responses(b), b.weight, b.targets))  # type: ignore[no-untyped-call]
    return ppo(made, b)


def quantile_mask(b: Batch) -> Tensor:
    """Only tokens of high entropy count: the mask needs every row."""
    logits = logits_of(b)
    unsure = entropy(logits).detach()
    mask = (unsure >= unsure.flatten().sort().values[4]).to(unsure.dtype)
    logp = logsumexp_gather(logits, b.targets)
    return -(torch.exp(logp - b.old) * b.advantages[:, None] * mask).sum() / b.mask.sum()


# Dynamo makes an instance of a custom function, which torch itself warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

EARLY = [
    plain,
    softmax,
    loops,
    loops_of_softmax,
    nll,
    cross_entropy_mean,
    softcap_temperature,
    bias,
    drop_in,
    tied,
    frozen_head,
    frozen_hidden,
    adapter_head,
    dropout,
    packed,
    token_mean,
    cispo,
    sliced_logits,
    twice_sliced_logits,
    entropy_bonus,
    entropy_logged,
]
REBUILD = [
    (entropy_returned, "several outputs that require grad"),
    (sequence_level, "sum.dim_IntList"),
    (sequence_softmax, "sum.dim_IntList"),
    (loops_sequence_level, "sum.dim_IntList"),
    (sliced_logits_sequence_level, "sum.dim_IntList"),
    (log_probs_returned, "per token"),
    (clipped_gradient, "linear"),
    (quantile_mask, "sort"),
]
VOCABULARY = 503
ROWS = 14


@cache
def joint(update: Callable[[Batch], Tensor]) -> Joint:
    b = batch(vocabulary=VOCABULARY)
    return capture(lambda: update(b))


@pytest.mark.parametrize("chunks", [1, 3, 8])
@pytest.mark.parametrize("update", [*EARLY, *(update for update, _ in REBUILD)])
def test_the_cut_graph_computes_the_same(update: Callable[[Batch], Tensor], chunks: int) -> None:
    whole = joint(update)
    cut = whole.cut(chunks)
    assert_close(whole.outputs(cut, scale=0.5), whole.outputs(scale=0.5))


@pytest.mark.parametrize(
    "sizes",
    [
        {"tokens": 7, "vocabulary": 14},  # as many rows as there are tokens in the vocabulary
        {"tokens": 4, "vocabulary": 9},  # as many rows as the hidden size
        {"tokens": 1, "vocabulary": 33},
        {"sequences": 1, "tokens": 7, "vocabulary": 12},
        {"prompt": 7, "tokens": 7, "vocabulary": 14},  # as many rows kept as in the vocabulary
    ],
)
@pytest.mark.parametrize("update", [plain, sequence_softmax, bias, sliced_logits])
def test_sizes_that_coincide(update: Callable[[Batch], Tensor], sizes: dict[str, Any]) -> None:
    b = batch(**sizes)
    whole = capture(lambda: update(b))
    assert_close(whole.outputs(whole.cut(2)), whole.outputs())


@pytest.mark.parametrize("update", EARLY)
def test_token_level_losses_take_the_early_form(update: Callable[[Batch], Tensor]) -> None:
    found = site(joint(update).gm)
    assert (found.form, found.why_rebuild) == ("early", "")


@pytest.mark.parametrize(("update", "why"), REBUILD)
def test_others_are_rebuilt_and_say_why(update: Callable[[Batch], Tensor], why: str) -> None:
    found = site(joint(update).gm)
    assert found.form == "rebuild"
    assert why in found.why_rebuild


@pytest.mark.parametrize("update", [*EARLY, *(update for update, _ in REBUILD)])
def test_no_more_than_a_chunk_is_alive(update: Callable[[Batch], Tensor]) -> None:
    whole = joint(update)
    before, longest_before = wide_alive(whole.gm, VOCABULARY)
    after, longest = wide_alive(whole.cut(7), VOCABULARY)
    assert longest_before >= ROWS
    assert longest <= 8  # 2 rows a chunk; the weight's gradient has D = 8 columns
    assert after < before
