"""Values under codecs as calibration makes them."""

from __future__ import annotations

import math

import pytest
import torch

from hilore_planner.calibration.measure import change_by, round_trip
from hilore_planner.passes.codecs import codec_named
from hilore_planner.passes.codecs.base import Rounding


@pytest.mark.parametrize("name", ["int8", "int6", "int4", "fp8_e4m3"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 128), (5, 48), (1, 4, 256)])
def test_a_round_trip_is_what_is_decoded(
    name: str, rounding: Rounding, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(1)
    value = torch.randn(shape, generator=generator).to(dtype)
    value.view(-1)[:3] = torch.tensor([math.inf, -math.inf, math.nan])
    codec = codec_named(name, rounding)
    expected = codec.decode(codec.encode(value), dtype)
    assert torch.equal(round_trip(value, codec).nan_to_num(7.0), expected.nan_to_num(7.0))


def test_errors_are_magnified() -> None:
    value = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    codec = codec_named("int8")
    once, thrice = (change_by(codec, factor)(value) - value for factor in (1.0, 3.0))
    torch.testing.assert_close(thrice, 3 * once, rtol=1e-4, atol=1e-6)
