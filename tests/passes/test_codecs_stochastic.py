"""Stochastic rounding: no bias, errors that do not go together, nothing drawn."""

from __future__ import annotations

import math

import pytest
import torch

from hilore_planner.passes.codecs import codec_named
from tests.passes.codec_cases import LEVELS, LOSSY, gaussian, round_trip, step


@pytest.mark.parametrize("name", LOSSY)
def test_stochastic_rounding_has_no_bias_over_places(name: str) -> None:
    """Rows all alike, so that the mean over rows is the expectation of the rounding."""
    codec = codec_named(name, "stochastic")
    x = gaussian(1, 128).repeat(1024, 1)
    decoded = round_trip(codec, x)
    off = (decoded.double().mean(0) - x[0]).abs()
    # One of two neighbours a step apart deviates by half a step at most, the mean of 1024 by 1/32 of that.
    largest_step = step(codec, x[0].abs().max(), x[0])
    assert bool((off <= 4 * largest_step / 2 / 32).all())
    assert bool(((decoded != decoded[0]).any(0)).float().mean() > 0.95)
    nearest = round_trip(codec_named(name), x).double().mean(0)
    assert float((nearest - x[0]).square().mean()) > 100 * float(off.square().mean())


@pytest.mark.parametrize("name", LOSSY)
def test_stochastic_rounding_has_no_bias_over_batches(name: str) -> None:
    """One place, many values of its group's largest: what changes from step to step changes the noise."""
    codec = codec_named(name, "stochastic")
    x = 0.3 * torch.ones(1, 64)
    found = []
    for number in range(400):
        x[0, 0] = 1 + number / 4096
        found.append(round_trip(codec, x)[0, 17].double())
    wrong = torch.stack(found) - 0.3
    assert float(wrong.std()) > 0
    assert abs(float(wrong.mean())) <= 4 * float(wrong.std()) / math.sqrt(len(found))


@pytest.mark.parametrize("name", LEVELS)
def test_equal_rows_have_errors_that_do_not_go_together(name: str) -> None:
    codec, x = codec_named(name, "stochastic"), gaussian(1, 256).repeat(1024, 1)
    wrong = (round_trip(codec, x) - x).double()
    variance = wrong.square().mean()
    for apart in (1, 2, 7):
        together = (wrong[apart:] * wrong[:-apart]).mean() / variance
        # Of a group's columns any two have noise a fixed distance apart: as many pairs as groups are independent.
        assert abs(float(together)) < 4 / math.sqrt(1024 * 256 / 128)


@pytest.mark.parametrize("name", LOSSY)
def test_errors_of_rows_add_in_squares_in_a_weight_gradient(name: str) -> None:
    codec = codec_named(name, "stochastic")
    x, outward = gaussian(2048, 128), gaussian(2048, 64, seed=1).double()
    wrong = (round_trip(codec, x) - x).double()
    apart = wrong.square().sum(-1) @ outward.square().sum(-1)
    together = (wrong.T @ outward).square().sum()
    # Of 128 x 64 independent sums of squares the mean is off by sqrt(2 / 8192), 1.6%.
    assert float(together / apart) == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize("name", LOSSY)
def test_rounding_is_repeated_and_draws_no_random_numbers(name: str) -> None:
    codec, x = codec_named(name, "stochastic"), gaussian(8, 128)
    before = torch.random.get_rng_state()
    first, second = codec.encode(x), codec.encode(x.clone())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(map(torch.equal, first, second))
