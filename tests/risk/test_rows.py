"""Which rows of an activation belong to which sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hilore_planner.calibration.rows import SequenceWeights, squared_error
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.exposure import exposure, packed
from hilore_planner.grpo.registry import make_loss

ONE_WINNER = torch.tensor([2.4749, *[-0.3536] * 7])


def _weights() -> SequenceWeights:
    batch = LossBatch(advantages=ONE_WINNER, mask=torch.ones(8, 5))
    return SequenceWeights.of(exposure(make_loss("trl/grpo"), batch))


def test_weights_follow_the_squared_advantage() -> None:
    weights = _weights().weights
    assert float(weights.mean()) == pytest.approx(1.0)
    assert float(weights[0] / weights[1]) == pytest.approx((2.4749 / 0.3536) ** 2, rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 5, 16), (8, 2, 5, 16), (40, 16), (8, 16)])
def test_padded_activations(shape: tuple[int, ...]) -> None:
    """Rows of the first sequence, and no others, get its weight."""
    value = torch.zeros(shape)
    spread = _weights().over(value).expand(shape).reshape(8, -1)
    expected = _weights().weights[:, None].expand_as(spread)
    assert torch.equal(spread, expected)


@pytest.mark.parametrize("shape", [(1, 18, 16), (18, 16), (1, 2, 18, 16)])
def test_packed_activations(shape: tuple[int, ...]) -> None:
    lengths = torch.tensor([3, 10, 5])
    batch = LossBatch(advantages=torch.tensor([2.0, 0.0, 1.0]), mask=torch.ones(3, 10))
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    weights = SequenceWeights.of(packed(exposure(make_loss("trl/grpo"), batch), cu_seqlens))
    spread = weights.over(torch.zeros(shape)).expand(shape)
    rows = spread.movedim(shape.index(18), 0).reshape(18, -1)[:, 0]
    assert torch.equal(rows, torch.repeat_interleave(weights.weights, lengths))
    assert bool((rows[3:13] == 0).all())
    assert float(rows.mean()) == pytest.approx(1.0)


def test_other_activations_count_alike() -> None:
    assert _weights().over(torch.zeros(3, 7)).tolist() == [[1.0]]


def test_nothing_exposed_counts_alike() -> None:
    batch = LossBatch(advantages=torch.zeros(2), mask=torch.ones(2, 3))
    weights = SequenceWeights.of(exposure(make_loss("trl/grpo"), batch))
    assert weights.weights.tolist() == [1.0, 1.0]


def test_errors_in_rows_that_do_not_matter_do_not_count() -> None:
    value = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    changed = value.clone()
    changed[1] *= 2
    weights = replace(_weights(), weights=torch.tensor([2.0, 0.0]).double())
    assert float(squared_error(value, changed, weights.over(value))) == 0.0
    share = value[1].square().sum() / value.square().sum()
    assert float(squared_error(value, changed, None)) == pytest.approx(float(share), rel=1e-5)
