"""What tests of codecs share."""

from __future__ import annotations

import pytest
import torch

from hilore_planner.codec_names import KNOWN_CODECS
from hilore_planner.passes.codecs import Codec, codec_named

HALF = (torch.bfloat16, torch.float16)
LOSSY = [name for name in KNOWN_CODECS if name not in ("bf16", "bits")]
"""Codecs with scales."""
LEVELS = {"int8": 127, "int6": 31, "int4": 7}
"""Steps from zero to the largest value of a group."""

lossy = pytest.mark.parametrize(
    "codec",
    [codec_named(name, rounding) for name in LOSSY for rounding in ("nearest", "stochastic")],
    ids=lambda codec: f"{codec.name}-{codec.rounding}",
)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, *HALF])


def round_trip(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x), x.dtype)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    wrong = (found.double() - expected.double()).square().mean()
    return float((wrong / expected.double().square().mean()).sqrt())


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def step(codec: Codec, peak: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Distance of neighbouring codes at x, in a group or row of this peak."""
    if codec.name in LEVELS:
        return peak.double() / LEVELS[codec.name] * torch.ones_like(x).double()
    # e4m3: three bits after the point, and steps of 2^-9 below 2^-6 where the peak is at 384.
    return torch.maximum(x.double().abs() * 2.0**-3, peak.double() / 384 * 2.0**-9)
