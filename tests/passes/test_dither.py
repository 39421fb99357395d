"""The noise of stochastic rounding fills its interval evenly, and that of one group says nothing of another's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.passes.codecs.rounding import (
    NOISE_BITS,
    FixedPoint,
    dither,
    starts_of,
)

SHAPE = (8, 256, 16, 1)


def _scales(kind: str) -> torch.Tensor:
    if kind == "equal":
        return torch.full(SHAPE, 0.037)
    drawn = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    return drawn.bfloat16().float() if kind == "of 16 bits" else drawn


@pytest.mark.parametrize("kind", ["equal", "of 16 bits", "of 32 bits"])
def test_noise_is_even_and_independent(kind: str) -> None:
    noise = (dither(starts_of(_scales(kind)), (8,)).double() + 0.5) / 2**NOISE_BITS - 0.5
    assert float(noise.min()) > -0.5
    assert float(noise.max()) < 0.5
    start = torch.polar(torch.ones_like(noise[..., 0]), 2 * math.pi * noise[..., 0])
    # A mean of n independent directions is about 1/√n long.
    limit = 4 / math.sqrt(start.numel())
    assert float(start.mean().abs()) < limit
    for dim in range(3):
        size = SHAPE[dim] - 1
        others = start.narrow(dim, 1, size) * start.narrow(dim, 0, size).conj()
        assert float(others.mean().abs()) < 1.1 * limit
    counts = torch.histc(noise[..., 0], 16, -0.5, 0.5) / noise[..., 0].numel()
    assert float((counts - 1 / 16).abs().max()) < 0.1 / 16


points = pytest.mark.parametrize("point", [FixedPoint(0, 128), FixedPoint(NOISE_BITS, 128)])


@points
@given(value=st.floats(-127.0, 127.0, width=32))
def test_whole_numbers_are_the_nearest_and_come_back(point: FixedPoint, value: float) -> None:
    found = point.raised(torch.tensor(value)).view(torch.int32)
    steps = round(value * 2**point.bits)  # Python rounds to even, too
    assert int(found) - point.whole(128) == steps
    assert float(point.back(found)) == steps / 2**point.bits


@points
def test_infinities_are_beyond_all_whole_numbers(point: FixedPoint) -> None:
    """The lower one is the lowest code: its last bits are none, whatever noise is added."""
    infinite = torch.tensor([-math.inf, math.inf])
    low, high = point.raised(infinite).view(torch.int32).tolist()
    noise = (1 << point.bits) - 1
    assert (low + noise >> point.bits) & 255 == 0
    assert high > point.whole(256)
