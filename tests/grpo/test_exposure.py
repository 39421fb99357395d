from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import OptionError
from hilore_planner.grpo.batch import LossBatch, pack_padded, packed_batch
from hilore_planner.grpo.exposure import (
    Exposure,
    entropy_norm_bound,
    exposure,
    logit_norm,
    typical_tiers,
)
from hilore_planner.grpo.registry import make_loss
from hilore_planner.grpo.tiers import make_tiers
from tests.grpo.batches import Drawn, drawn, random_batch

PPO = make_loss("trl/dapo")


@given(case=drawn)
def test_rows_are_the_causal_suffix_sums(case: Drawn) -> None:
    found = exposure(PPO, case.batch, log_probs=case.log_probs)
    c = PPO.coefficient(case.log_probs, case.batch)
    n = math.sqrt(2) * (1 - case.log_probs.exp())
    rows, width = case.batch.mask.shape
    for i in range(rows):
        for t in range(width):
            later = [float((c[i, s] * n[i, s]) ** 2) for s in range(t, width)]
            assert math.isclose(float(found.rows[i, t]), math.sqrt(sum(later)), abs_tol=1e-12)
            assert bool(found.live[i, t]) == any(float(c[i, s]) != 0 for s in range(t, width))
    torch.testing.assert_close(found.sequence_squares, found.rows.square().sum(-1))


@given(case=drawn)
def test_packed_rows_equal_padded_rows(case: Drawn) -> None:
    width = case.batch.mask.shape[1]
    lengths = torch.arange(case.batch.mask.shape[0]) % width + 1
    padded_mask = case.batch.mask * (torch.arange(width) < lengths.unsqueeze(1))
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    batch = LossBatch(
        advantages=case.batch.token_advantages.expand_as(padded_mask)[:, 0].contiguous(),
        mask=padded_mask,
        old_log_probs=case.batch.old_log_probs,
    )
    assert batch.old_log_probs is not None
    flat = packed_batch(
        cu_seqlens,
        advantages=batch.advantages,
        mask=pack_padded(batch.mask, lengths),
        old_log_probs=pack_padded(batch.old_log_probs, lengths),
    )
    padded = exposure(PPO, batch)
    found = exposure(PPO, flat, cu_seqlens=cu_seqlens)
    assert bool((found.rows == pack_padded(padded.rows, lengths)).all())
    assert bool((found.live == pack_padded(padded.live, lengths)).all())
    torch.testing.assert_close(found.sequence_squares, found_by_hand(found.rows, lengths))
    assert found.live_sequences.tolist() == padded.live.any(-1).tolist()


def found_by_hand(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.square().sum() for part in torch.split(rows, lengths.tolist())])


def test_constant_reward_under_a_kl_term_is_live() -> None:
    """Liveness comes from the final coefficient, never from the advantage."""
    case = random_batch(0, drift=0.0)
    batch = replace(case.batch, advantages=torch.zeros_like(case.batch.advantages))
    dead = exposure(PPO, batch)
    assert not bool(dead.live.any())
    live = exposure(make_loss("trl/dapo", beta=0.04), batch)
    masked_in = batch.live_mask.flip(-1).cumsum(-1).flip(-1) > 0
    assert bool((live.live == masked_in).all())
    assert bool((live.rows[masked_in] > 0).all())


def test_an_entropy_bonus_keeps_rows_alive_and_needs_the_vocabulary() -> None:
    case = random_batch(0, drift=0.0)
    batch = replace(case.batch, advantages=torch.zeros_like(case.batch.advantages))
    loss = make_loss("verl/vanilla", entropy_coeff=0.01)
    found = exposure(loss, batch, vocab_size=100)
    assert bool((found.live == (found.rows > 0)).all())
    assert bool(found.live.any())
    with pytest.raises(OptionError, match="vocab_size"):
        exposure(loss, batch)


def test_basis() -> None:
    case = random_batch(3, drift=0.4)
    batch = replace(case.batch, is_weights=None)
    loss = make_loss("verl/vanilla")
    first = exposure(loss, batch)
    bound = exposure(loss, batch, assume="bound")
    fresh = exposure(loss, batch, log_probs=case.log_probs)
    assert [e.basis for e in (first, bound, fresh)] == ["on_policy", "bound", "fresh"]
    assert bool((bound.coefficients >= fresh.coefficients.abs()).all())
    assert bool((bound.coefficients >= first.coefficients.abs()).all())
    assert bool((fresh.live <= bound.live).all())
    assert bool((bound.rows >= fresh.rows).all())
    assert bool((bound.rows >= first.rows).all())
    assert bool((first.live == bound.live).all())


def test_liveness_does_not_rely_on_ratio_one() -> None:
    """Off policy DRO moves tokens of zero advantage, which at ratio one have no coefficient."""
    batch = LossBatch(advantages=torch.zeros(2), mask=torch.ones(2, 3))
    found = exposure(make_loss("verl/dro", dro_beta=0.5), batch)
    assert bool((found.rows == 0).all())
    assert bool(found.live.all())


def test_an_infinite_bound_is_refused_and_a_ratio_limit_helps() -> None:
    batch = random_batch(3).batch
    with pytest.raises(OptionError, match="ratio_limit"):
        exposure(PPO, batch, assume="bound")
    assert bool(torch.isfinite(exposure(PPO, batch, assume="bound", ratio_limit=2.0).rows).all())


def test_entropy_quantile_is_not_known_before_the_forward() -> None:
    batch = random_batch(3).batch
    with pytest.raises(OptionError, match="log_probs"):
        exposure(make_loss("trl/dapo", top_entropy_quantile=0.2), batch)


@given(st.integers(0, 1000), st.floats(0.1, 5.0))
def test_logit_norm_against_autograd(seed: int, sharpness: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(1, 9, generator=generator).double() * sharpness).requires_grad_()
    log_probs = torch.log_softmax(logits, -1)
    (gradient,) = torch.autograd.grad(log_probs[0, 4], logits, retain_graph=True)
    exact = logit_norm(log_probs[:, 4].detach(), log_probs.detach().exp().square().sum(-1))
    assert isinstance(exact, torch.Tensor)
    assert float(exact) == pytest.approx(float(gradient.norm()), rel=1e-6, abs=1e-7)
    bound = logit_norm(log_probs[:, 4].detach())
    assert isinstance(bound, torch.Tensor)
    assert float(gradient.norm()) <= float(bound) * (1 + 1e-9) <= math.sqrt(2) * (1 + 1e-9)
    entropy = -(log_probs.exp() * log_probs).sum()
    (gradient,) = torch.autograd.grad(entropy, logits)
    assert float(gradient.norm()) <= entropy_norm_bound(9)


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e3), st.integers(1, 9), st.booleans()), min_size=1, max_size=6
    ),
    st.integers(1, 3),
)
def test_tiers_are_the_best_cut(sequences: list[tuple[float, int, bool]], count: int) -> None:
    squares = [s if live else 0.0 for s, _, live in sequences]
    rows, live = [n for _, n, _ in sequences], [a for *_, a in sequences]
    found = make_tiers(squares, rows, live, count)
    assert sorted(found.order) == list(range(len(rows)))
    assert [t.start for t in found.tiers[1:]] == [t.stop for t in found.tiers[:-1]]
    assert (found.tiers[0].start, found.tiers[-1].stop) == (0, len(rows))
    means = [t.mean_square for t in found.tiers if t.is_live]
    assert means == sorted(means, reverse=True)
    assert len(means) <= count
    for tier in found.tiers:
        members = found.order[tier.start : tier.stop]
        assert tier.row_stop - tier.row_start == sum(rows[i] for i in members)
        assert all(live[i] == tier.is_live for i in members)
    assert found.bits >= best_bits(squares, rows, live, count) - 1e-9


def best_bits(squares: list[float], rows: list[int], live: list[bool], count: int) -> float:
    """By trying every assignment of live sequences to levels."""
    alive = [i for i, is_live in enumerate(live) if is_live]
    total, every = sum(squares[i] for i in alive), sum(rows[i] for i in alive)
    best = 0.0
    for code in range(count ** len(alive)):
        levels: dict[int, list[int]] = {}
        for position, i in enumerate(alive):
            levels.setdefault(code // count**position % count, []).append(i)
        logs = sum(
            sum(rows[i] for i in part)
            * math.log2(sum(squares[i] for i in part) / sum(rows[i] for i in part))
            for part in levels.values()
        )
        if every:
            best = max(best, 0.5 * (math.log2(total / every) - logs / every))
    return best


def test_tiers_of_an_exposure() -> None:
    batch = LossBatch(advantages=torch.tensor([0.1, 2.0, 0.0, -2.1, 0.12]), mask=torch.ones(5, 4))
    found = exposure(PPO, batch).tiers(2)
    assert found.order == (3, 1, 4, 0, 2)
    assert [(t.start, t.stop, t.row_start, t.row_stop) for t in found.tiers] == [
        (0, 2, 0, 8),
        (2, 4, 8, 16),
        (4, 5, 16, 20),
    ]
    assert not found.tiers[-1].is_live
    assert found.bits > 1.5
    with pytest.raises(OptionError, match="tiers"):
        exposure(PPO, batch).tiers(0)


def _shared(squares: list[list[float]]) -> list[Exposure]:
    """Microbatches of sequences of two rows with these squared exposures."""
    rows = torch.tensor(squares, dtype=torch.float64)[:, :, None].expand(-1, -1, 2).div(2).sqrt()
    return [Exposure(one, one > 0, one, "on_policy") for one in rows]


def test_tiers_of_several_microbatches_are_those_of_their_mean() -> None:
    usual, odd = [1.0, 50.0, 1.0, 40.0], [10.0, 1.0, 970.0, 9.0]
    assert [t.stop for t in _shared([odd])[0].tiers(2).tiers] == [1, 4]
    found = typical_tiers(_shared([odd, usual, usual]), 2)
    assert [t.stop for t in found.tiers] == [2, 4]
    assert found.order == (0, 1, 2, 3)


def test_what_one_microbatch_has_alive_is_alive() -> None:
    found = typical_tiers(_shared([[0.0, 3.0, 0.0], [2.0, 1.0, 0.0]]), 1)
    assert [(t.stop, t.is_live) for t in found.tiers] == [(2, True), (3, False)]
    nothing = typical_tiers(_shared([[0.0, 0.0]]))
    assert [t.is_live for t in nothing.tiers] == [False]


def test_tiers_of_no_one_shape_are_refused() -> None:
    with pytest.raises(OptionError, match=r"sequences of \[\] rows"):
        typical_tiers([])
    with pytest.raises(
        OptionError, match=r"\[\(2, 2\), \(2, 2, 2\)\] rows; accepted: microbatches"
    ):
        typical_tiers([*_shared([[1.0, 2.0]]), *_shared([[1.0, 2.0, 3.0]])])
    with pytest.raises(OptionError, match="tiers is 0"):
        typical_tiers(_shared([[1.0]]), 0)
