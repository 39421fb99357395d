"""Values under codecs as calibration makes them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.calibration.round_trip import change_by, round_trip
from hilore_planner.passes.codecs import codec_named
from hilore_planner.passes.codecs.base import Rounding
from hilore_planner.passes.codecs.layout import InMemoryOrder


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@settings(max_examples=60)
@given(
    name=st.sampled_from(["int8", "int6", "int4", "fp8_e4m3"]),
    rounding=st.sampled_from(["nearest", "stochastic"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    shape=st.sampled_from([(2, 3, 128), (5, 48), (1, 4, 256)]),
    seed=st.integers(0, 9),
    exponents=st.tuples(st.integers(-130, 127), st.integers(-130, 127)),
    is_even=st.booleans(),
    special=st.lists(st.sampled_from([0.0, math.inf, -math.inf, math.nan]), max_size=3),
)
def test_a_round_trip_is_what_is_decoded(
    name: str,
    rounding: Rounding,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    seed: int,
    exponents: tuple[int, int],
    is_even: bool,
    special: list[float],
) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator, dtype=torch.float64)
    if is_even:
        value = (16 * value).round() / 4  # many are halfway between two steps
    value[0] *= 2.0 ** exponents[0]
    value[1:] *= 2.0 ** exponents[1]
    end = torch.finfo(dtype).max
    value = value.clamp(-end, end).to(dtype)
    value.view(-1)[: len(special)] = torch.tensor(special)
    codec = codec_named(name, rounding)
    expected = codec.decode(codec.encode(value), dtype)
    is_finite = bool(value.isfinite().all())
    assert _same(round_trip(value, codec, is_finite=is_finite), expected)


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3"])
def test_a_round_trip_keeps_the_layout(name: str) -> None:
    value = torch.randn(2, 4, 8, 32, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    codec = InMemoryOrder(codec_named(name, "stochastic"), (0, 2, 1, 3))
    back = round_trip(value, codec, is_finite=True)
    assert back.stride() == value.stride()
    assert _same(back, codec.decode(codec.encode(value), value.dtype))


def test_errors_are_magnified() -> None:
    value = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    codec = codec_named("int8")
    once, thrice = (change_by(codec, factor)(value) - value for factor in (1.0, 3.0))
    torch.testing.assert_close(thrice, 3 * once, rtol=1e-4, atol=1e-6)
