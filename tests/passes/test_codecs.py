from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import OptionError
from hilore_planner.options import KNOWN_CODECS
from hilore_planner.passes.codecs import CODECS, Codec, accepts, codec_named, group_size

codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def _round_trip(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x), x.dtype)


def _relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    wrong = (found.double() - expected.double()).square().mean()
    return float((wrong / expected.double().square().mean()).sqrt())


@codecs
def test_the_error_of_gaussian_rows_is_the_stated_one(codec: Codec) -> None:
    x = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(0))
    assert _relative_error(_round_trip(codec, x), x) == pytest.approx(
        codec.relative_error, rel=0.05
    )


@codecs
@dtypes
def test_half_precision_adds_no_more_than_its_own_rounding(
    codec: Codec, dtype: torch.dtype
) -> None:
    x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0)).to(dtype)
    decoded = _round_trip(codec, x)
    # Uniform over one unit in the last place: eps / sqrt(12) for the value, and as much for a bf16 scale.
    rounding = torch.finfo(dtype).eps / math.sqrt(12)
    scale = torch.finfo(torch.bfloat16).eps / math.sqrt(12) if dtype.itemsize == 2 else 0.0
    assert decoded.dtype == dtype
    limit = math.hypot(1.05 * codec.relative_error, rounding, scale)
    assert _relative_error(decoded, x) <= limit


@codecs
@given(
    rows=st.integers(1, 5),
    features=st.integers(1, 400),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_kept_bytes_are_those_of_the_parts(
    codec: Codec, rows: int, features: int, dtype: torch.dtype
) -> None:
    x = torch.randn(2, rows, features).to(dtype)
    parts = codec.encode(x)
    assert sum(part.numel() * part.element_size() for part in parts) == codec.kept_bytes(
        x.shape, dtype
    )
    decoded = codec.decode(parts, dtype)
    assert (decoded.shape, decoded.dtype) == (x.shape, dtype)
    assert bool(torch.isfinite(decoded).all())


@codecs
@dtypes
def test_zeros_stay_zeros(codec: Codec, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 130, dtype=dtype)
    assert torch.equal(_round_trip(codec, x), x)


@codecs
@dtypes
@pytest.mark.parametrize("scale", [1e-4, 1.0, 6e4])
def test_no_value_moves_by_more_than_a_step(codec: Codec, dtype: torch.dtype, scale: float) -> None:
    """The largest value of a group lands on the last code, whichever way its scale was rounded."""
    x = (torch.randn(64, 256, generator=torch.Generator().manual_seed(3)).clamp(-1, 1) * scale).to(
        dtype
    )
    decoded = _round_trip(codec, x)
    peak = x.double().abs().amax(-1, keepdim=True)
    # int8: half a step of peak/127; e4m3: 3 bits after the point, so half of 2^-3 of the value.
    # The scale of half-precision values is bf16, 8 bits: half of 2^-7 of the peak more.
    half_step = 0.5 / 127 if codec.name == "int8" else 0.5 / 8
    coarse = 2.0**-8 if dtype.itemsize == 2 else 1e-6
    assert bool(((decoded.double() - x.double()).abs() <= (half_step + 2 * coarse) * peak).all())
    assert bool(torch.isfinite(decoded).all())


@given(features=st.integers(1, 2000))
def test_groups_divide_the_features_and_are_as_large_as_can_be(features: int) -> None:
    size = group_size(features)
    assert features % size == 0
    assert size <= 128
    assert not any(features % larger == 0 for larger in range(size + 1, min(features, 128) + 1))


@codecs
def test_codecs_work_on_values_that_are_not_contiguous(codec: Codec) -> None:
    x = torch.randn(2, 16, 4, 32).transpose(1, 2)
    assert torch.equal(_round_trip(codec, x), _round_trip(codec, x.contiguous()))


def test_an_unknown_codec_is_named_with_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"'int3'.*int8, fp8_e4m3"):
        codec_named("int3")
    assert set(KNOWN_CODECS) == set(CODECS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(2, 2), True),
        (torch.zeros(2, 2, dtype=torch.bfloat16), True),
        (torch.zeros(2, 2, dtype=torch.float8_e4m3fn), False),
        (torch.zeros(2, 2, dtype=torch.int64), False),
        (torch.zeros(2, 2, dtype=torch.bool), False),
        (torch.zeros(2), False),
    ],
)
def test_only_wide_floating_point_rows_are_compressed(value: torch.Tensor, expected: bool) -> None:
    assert accepts(value) is expected
