"""Gradients of the full batch and of what is left without its dead rows: equal to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.advantages import VERL, group_advantages
from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.batch import LossBatch, pack_padded, pad_packed
from hilore_planner.grpo.dead_rows import blocked_by, drop_dead
from hilore_planner.grpo.microbatches import pack_microbatches, pad_microbatches
from hilore_planner.grpo.registry import make_loss
from tests.grpo.batches import random_batch, varied
from tests.grpo.tiny import VOCAB, Tiny

ROWS, WIDTH = 8, 6
DROPPABLE = [loss for loss in varied() if not blocked_by(loss)]
BLOCKED = [loss for loss in varied() if blocked_by(loss)]
ROUNDING = 1e-12


def tokens(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (ROWS, WIDTH + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def batch_for(model: Tiny, seed: int = 0) -> LossBatch:
    """Rows 1 and 4 dead by advantage, 5 by importance weights, 7 by mask; row 0 has a suffix."""
    drawn = random_batch(seed, rows=ROWS, width=WIDTH).batch
    with torch.no_grad():
        now = model(*tokens())
    generator = torch.Generator().manual_seed(seed + 1)
    shifted = now + 0.3 * torch.randn(now.shape, generator=generator, dtype=now.dtype)
    assert drawn.is_weights is not None
    drawn.advantages[4] = 0.0
    drawn.is_weights[5] = 0.0
    drawn.is_weights[0, WIDTH - 3 :] = 0.0
    drawn.mask[0] = 1
    drawn.mask[6] = 1
    return replace(
        drawn, old_log_probs=shifted, ref_log_probs=shifted + 0.1, sampling_log_probs=shifted - 0.1
    )


def full_gradient(model: Tiny, loss: PolicyLoss, batch: LossBatch) -> tuple[Tensor, Tensor]:
    value = loss.loss(model(*tokens()), batch)
    torch.autograd.backward(value)
    return value.detach(), model.gradient()


def assert_equal(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).abs().max()) <= ROUNDING * float(expected.abs().max())


@pytest.mark.parametrize("loss", DROPPABLE, ids=str)
def test_gradients_are_those_of_the_full_batch(loss: PolicyLoss) -> None:
    model = Tiny()
    batch = batch_for(model)
    value, expected = full_gradient(model, loss, batch)
    live = drop_dead(loss, batch)
    assert {1, 4, 7}.isdisjoint(live.kept.tolist())
    if loss.gate_bound(batch) is not None and batch.is_weights is loss.gate_bound(batch):
        assert 5 not in live.kept.tolist()
        if not loss.traits.whole_sequence:
            assert live.lengths[0] == WIDTH - 3
    ids, targets = tokens()
    found = loss.loss(model(live.padded(ids), live.padded(targets)), live.batch)
    torch.autograd.backward(found)
    assert_equal(found.detach(), value)
    assert_equal(model.gradient(), expected)


@pytest.mark.parametrize("name", ["trl/grpo", "trl/vespo", "verl/gspo", "openrlhf/ppo"])
@given(seed=st.integers(0, 2**31), max_tokens=st.integers(WIDTH, 20), shapes=st.integers(1, 3))
@settings(max_examples=10)
def test_random_batches(name: str, seed: int, max_tokens: int, shapes: int) -> None:
    loss, model = make_loss(name), Tiny()
    batch = batch_for(model, seed)
    _, expected = full_gradient(model, loss, batch)
    live = drop_dead(loss, batch)
    ids, targets = tokens()
    lengths = live.lengths.tolist()
    for microbatch in pad_microbatches(lengths, max_tokens=max_tokens, shapes=shapes):
        part = live.take(microbatch)
        made = model(part.padded(ids), part.padded(targets))
        torch.autograd.backward(loss.loss(made, part.batch))
    assert_equal(model.gradient(), expected)


@pytest.mark.parametrize("loss", DROPPABLE[:25], ids=str)
def test_microbatches_add_up_to_the_full_batch(loss: PolicyLoss) -> None:
    model = Tiny()
    batch = batch_for(model)
    value, expected = full_gradient(model, loss, batch)
    live = drop_dead(loss, batch)
    ids, targets = tokens()
    found = torch.zeros_like(value)
    lengths = live.lengths.tolist()
    shapes = set()
    for microbatch in pad_microbatches(lengths, max_tokens=14, shapes=2, multiple=2):
        part = live.take(microbatch)
        assert tuple(part.batch.mask.shape) == (microbatch.height, microbatch.width)
        shapes.add(tuple(part.batch.mask.shape))
        term = loss.loss(model(part.padded(ids), part.padded(targets)), part.batch)
        torch.autograd.backward(term)
        found += term.detach()
    assert len(shapes) <= 2
    assert_equal(found, value)
    assert_equal(model.gradient(), expected)


@pytest.mark.parametrize("name", ["trl/dapo", "trl/grpo", "verl/gspo", "torchtitan/dapo"])
def test_packed_rows(name: str) -> None:
    loss, model = make_loss(name), Tiny()
    batch = batch_for(model)
    value, expected = full_gradient(model, loss, batch)
    live = drop_dead(loss, batch)
    full_lengths = torch.full((ROWS,), WIDTH)
    cu_seqlens = torch.arange(ROWS + 1) * WIDTH
    flat_ids, flat_targets = (pack_padded(x, full_lengths) for x in tokens())
    found = torch.zeros_like(value)
    for microbatch in pack_microbatches(live.lengths.tolist(), max_tokens=12):
        part = live.take(microbatch)
        ids, ends = part.packed(flat_ids, cu_seqlens, width=microbatch.width)
        targets, _ = part.packed(flat_targets, cu_seqlens, width=microbatch.width)
        assert ids.shape == (microbatch.width,)
        owner = torch.bucketize(torch.arange(len(ids)), ends, right=True)
        log_probs = model(ids[None], targets[None], owner)[0, : int(ends[-1])]
        padded = pad_packed(log_probs, ends)
        missing = part.batch.mask.shape[1] - padded.shape[1]
        padded = torch.nn.functional.pad(padded, (0, missing))
        term = loss.loss(padded, part.batch)
        torch.autograd.backward(term)
        found += term.detach()
    assert_equal(found, value)
    assert_equal(model.gradient(), expected)


@pytest.mark.parametrize("loss", BLOCKED, ids=str)
def test_refused_where_dead_rows_have_a_gradient(loss: PolicyLoss) -> None:
    with pytest.raises(OptionError, match=r"no row can be dropped: .* use the whole batch"):
        drop_dead(loss, random_batch(0).batch)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("trl/dapo", {"beta": 0.04}, r"a KL term \(beta=0.04\)"),
        ("trl/grpo", {"entropy_coef": 0.1}, "an entropy bonus"),
        ("trl/dapo", {"top_entropy_quantile": 0.2}, "taken over all tokens"),
        ("verl/vanilla", {"use_kl_loss": True}, "a KL term"),
        ("verl/kl_cov", {}, "the batch's means"),
        ("verl/dro", {"dro_beta": 1.0}, "quadratic penalty"),
        ("openrlhf/ppo", {"kl_coef": 0.1}, "a KL term"),
    ],
)
def test_the_refusal_says_why(name: str, options: dict[str, float], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        drop_dead(make_loss(name, **options), random_batch(0).batch)
    with pytest.raises(OptionError, match="auxiliary loss"):
        drop_dead(make_loss("trl/dapo"), random_batch(0).batch, auxiliary_loss=True)


def test_refusing_a_kl_term_is_needed() -> None:
    """Dropping rows of zero advantage under a KL term would change the gradient."""
    model, loss = Tiny(), make_loss("trl/dapo", beta=0.04)
    batch = batch_for(model)
    _, expected = full_gradient(model, loss, batch)
    silenced = batch.mask * (batch.advantages != 0).unsqueeze(1)
    dropped = replace(batch, mask=silenced, weights=loss.token_weights(batch))
    _, found = full_gradient(model, loss, dropped)
    assert float((found - expected).abs().max()) > 1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("name", ["trl/grpo", "trl/dapo", "trl/dr_grpo", "verl/vanilla"])
def test_five_of_eight_groups_of_constant_reward(name: str) -> None:
    """The optimizer steps as often and ends at the same weights, with momentum and decay."""
    groups = torch.arange(16) // 2
    rewards = torch.full((16,), 0.3)
    rewards[:6] = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.2, 0.9])
    advantages = group_advantages(rewards, groups, VERL).double()
    assert int((advantages != 0).sum()) == 6
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (16, WIDTH + 1), generator=generator)
    order = [0, 1, 6, 7, 2, 3, 8, 9, 10, 11, 12, 13, 4, 5, 14, 15]
    loss = make_loss(name)
    ends = []
    for drop in (False, True):
        model, steps = Tiny(), 0
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        with torch.no_grad():
            old = model(ids[:, :-1], ids[:, 1:])
        for part in torch.tensor(order).chunk(4):  # the third minibatch is dead as a whole
            batch = LossBatch(
                advantages=advantages[part], mask=torch.ones(4, WIDTH), old_log_probs=old[part]
            )
            inputs, targets = ids[part, :-1], ids[part, 1:]
            if drop:
                live = drop_dead(loss, batch)
                inputs, targets, batch = live.padded(inputs), live.padded(targets), live.batch
                assert live.is_empty == (steps == 2)
            optimizer.zero_grad(set_to_none=False)
            torch.autograd.backward(loss.loss(model(inputs, targets), batch))
            optimizer.step()
            steps += 1
        assert steps == 4
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    # Adam divides by the root of the second moment, so rounding of tiny gradients is magnified.
    assert float((ends[0] - ends[1]).abs().max()) <= 1e-9


def test_an_empty_batch_has_a_loss_of_zero() -> None:
    batch = LossBatch(advantages=torch.zeros(3), mask=torch.ones(3, 4))
    live = drop_dead(make_loss("verl/vanilla"), batch)
    assert live.is_empty
    assert make_loss("verl/vanilla").loss(torch.zeros(0, 0), live.batch) == 0


def test_rows_of_padding_add_nothing() -> None:
    loss = make_loss("verl/vanilla")
    batch = LossBatch(advantages=torch.tensor([1.0, -2.0, 3.0]), mask=torch.ones(3, 2))
    live = drop_dead(loss, batch)
    first, second = pad_microbatches([2, 2, 2], max_tokens=4, shapes=1)
    part = live.take(second)
    assert (len(first.sequences), len(second.sequences), second.height) == (2, 1, 2)
    assert part.kept.tolist() == [2, 2]
    assert loss.weights(part.batch).tolist() == [[pytest.approx(1 / 6)] * 2, [0.0, 0.0]]
    assert part.batch.mask.tolist() == [[1, 1], [0, 0]]


def test_packed_rows_of_another_batch() -> None:
    live = drop_dead(make_loss("verl/vanilla"), random_batch(0).batch)
    with pytest.raises(OptionError, match="6"):
        live.packed(torch.zeros(8), torch.tensor([0, 3, 8]))
    with pytest.raises(OptionError, match="ascending"):
        live.packed(torch.zeros(9), torch.tensor([0, 3, 8]))
