"""Codecs by themselves: bytes, error, rounding, and values that are not ordinary."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.codec_names import KNOWN_CODECS
from hilore_planner.errors import OptionError
from hilore_planner.passes.codecs import Codec, Rounding, codec_named
from hilore_planner.passes.codecs.floats import WHOLE_ROW, Fp8E4M3
from tests.passes.codec_cases import (
    HALF,
    LEVELS,
    LOSSY,
    dtypes,
    gaussian,
    lossy,
    relative_error,
    round_trip,
    step,
)


@lossy
def test_the_error_of_gaussian_rows_is_the_stated_one(codec: Codec) -> None:
    x = gaussian(512, 1024)
    assert relative_error(round_trip(codec, x), x) == pytest.approx(codec.relative_error, rel=0.02)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_row_with_one_scale_loses_a_little_more(rounding: Rounding) -> None:
    x, codec = gaussian(512, 1024), Fp8E4M3(rounding, WHOLE_ROW)
    codes, scales = codec.encode(x)
    assert (codes.shape, scales.shape) == ((512, 1, 1024), (512, 1, 1))
    assert codec.kept_bytes(x.shape, x.dtype) == x.numel() + 512 * 4
    assert relative_error(round_trip(codec, x), x) == pytest.approx(codec.relative_error, rel=0.02)
    assert codec.relative_error > codec_named("fp8_e4m3", rounding).relative_error


@lossy
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_adds_no_more_than_its_own_rounding(
    codec: Codec, dtype: torch.dtype
) -> None:
    x = gaussian(256, 1024).to(dtype)
    decoded = round_trip(codec, x)
    rounding = torch.finfo(dtype).eps / math.sqrt(12)
    assert decoded.dtype == dtype
    limit = math.hypot(1.02 * codec.relative_error, rounding)
    assert relative_error(decoded, x) <= limit


def test_groups_of_bytes_have_a_third_of_the_error_of_scaled_floats() -> None:
    for rounding in ("nearest", "stochastic"):
        int8, fp8 = codec_named("int8", rounding), codec_named("fp8_e4m3", rounding)
        assert 3 * int8.relative_error < fp8.relative_error


@pytest.mark.parametrize("name", LOSSY)
@settings(max_examples=25)
@given(
    rows=st.integers(1, 5),
    features=st.integers(1, 400),
    dtype=st.sampled_from([torch.float32, *HALF]),
    rounding=st.sampled_from(["nearest", "stochastic"]),
)
def test_kept_bytes_are_those_of_the_parts(
    name: str, rows: int, features: int, dtype: torch.dtype, rounding: Rounding
) -> None:
    codec = codec_named(name, rounding)
    x = torch.randn(2, rows, features).to(dtype)
    assert codec.accepts(x) is (features % 8 == 0 or name in ("int8", "fp8_e4m3"))
    if not codec.accepts(x):
        return
    parts = codec.encode(x)
    assert len(parts) == codec.num_parts
    assert all(part.is_contiguous() for part in parts)
    kept_bytes = sum(part.numel() * part.element_size() for part in parts)
    assert kept_bytes == codec.kept_bytes(x.shape, dtype)
    decoded = codec.decode(parts, dtype)
    assert (decoded.shape, decoded.dtype) == (x.shape, dtype)
    assert bool(torch.isfinite(decoded).all())


@pytest.mark.parametrize(
    ("name", "bits"), [("int8", 8.125), ("fp8_e4m3", 8.125), ("int6", 6.5), ("int4", 4.5)]
)
def test_bits_a_value(name: str, bits: float) -> None:
    shape = (2, 64, 1536)
    assert 8 * codec_named(name).kept_bytes(shape, torch.bfloat16) == bits * math.prod(shape)


@lossy
@dtypes
@pytest.mark.parametrize("size", ["tiny", "one", "largest"])
def test_no_value_moves_by_more_than_a_step(codec: Codec, dtype: torch.dtype, size: str) -> None:
    """Half a step, but for floating point that is rounded stochastically."""
    largest = {"tiny": 1e-4, "one": 1.0, "largest": torch.finfo(dtype).max}[size]
    x = (gaussian(32, 256, seed=3).clamp(-1, 1).double() * largest).to(dtype)
    decoded = round_trip(codec, x)
    peak = x.double().abs().amax(-1, keepdim=True)
    is_half = codec.name in LEVELS or codec.rounding == "nearest"  # type: ignore[attr-defined]
    steps = 0.5 if is_half else 1.0
    if size == "largest":
        # At the end of the range values are cut off rather than made infinite: 0.8% of the levels (e4m3 has 16 up to
        # each power of two), and with noise, which may take a value half a step beyond its code, the last half step.
        is_dithered = codec.name in LEVELS and codec.rounding == "stochastic"  # type: ignore[attr-defined]
        steps += 0.008 * LEVELS.get(codec.name, 16) + 0.5 * is_dithered
    # Scales are 2^-8 larger, and then rounded to bf16, by 2^-8 at most; the value by the dtype's own.
    limit = steps * (1 + 2**-8) ** 2 * step(codec, peak, x)
    limit += torch.finfo(dtype).eps * torch.maximum(x.abs(), decoded.abs()).double()
    # fp16 has subnormals below 6e-5, in steps of 6e-8.
    limit += 6e-8 if dtype is torch.float16 else 0
    assert bool(torch.isfinite(decoded).all())
    assert bool(((decoded.double() - x.double()).abs() <= limit).all())


@pytest.mark.parametrize("name", LOSSY)
def test_the_largest_of_a_group_comes_back_as_it_is(name: str) -> None:
    """Scales of 32-bit values are exact: what a softmax makes most of is not off by a part of itself."""
    x = gaussian(64, 32)
    largest = x.abs() == x.abs().amax(-1, keepdim=True)
    back = round_trip(codec_named(name), x)
    assert torch.allclose(back[largest], x[largest], rtol=1e-6)


@lossy
@dtypes
def test_zeros_stay_zeros(codec: Codec, dtype: torch.dtype) -> None:
    """But for the dither, which is taken off whatever the code."""
    x = torch.zeros(3, 136, dtype=dtype)
    is_dithered = codec.name in LEVELS and codec.rounding == "stochastic"  # type: ignore[attr-defined]
    rest = 1e-36 if is_dithered else 0.0
    assert bool((round_trip(codec, x).abs() <= rest).all())
    x[1, 7] = 1
    decoded = round_trip(codec, x)
    assert bool((decoded[[0, 2]].abs() <= rest).all())
    if not is_dithered:
        assert torch.equal(decoded == 0, x == 0)


@lossy
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_subnormal_values_come_back_as_small(codec: Codec, dtype: torch.dtype) -> None:
    x = (gaussian(4, 64).double() * 1e-39).to(dtype)
    assert bool((round_trip(codec, x).abs() < 1e-35).all())
    assert not bool(round_trip(codec, x).isnan().any())


@lossy
@dtypes
@settings(max_examples=6)
@given(data=st.data())
def test_infinities_and_nans_stay_in_place_and_among_themselves(
    codec: Codec, dtype: torch.dtype, data: st.DataObject
) -> None:
    clean = gaussian(4, 256).to(dtype)
    x = clean.clone()
    places = st.tuples(st.integers(0, 2), st.integers(0, 255))
    values = st.sampled_from([math.inf, -math.inf, math.nan])
    for (row, column), value in data.draw(st.dictionaries(places, values, min_size=1)).items():
        x[row, column] = value
    decoded, expected = round_trip(codec, x), round_trip(codec, clean)
    assert torch.equal(decoded.isnan(), x.isnan())
    assert torch.equal(decoded.isposinf(), x.isposinf())
    assert torch.equal(decoded.isneginf(), x.isneginf())
    assert torch.equal(decoded[3], expected[3])
    # Finite values beside them have at most a step of two fewer levels, upward of five.
    finite = x.isfinite()
    peak = x.masked_fill(~finite, 0).abs().amax(-1, keepdim=True)
    limit = 1.02 * 7 / 5 * step(codec, peak, x) + torch.finfo(dtype).eps * x.abs()
    assert bool(((decoded - x).abs().double() <= limit)[finite].all())


@dtypes
@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_group_of_nothing_but_infinities_and_nans(
    dtype: torch.dtype, name: str, rounding: Rounding
) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, math.nan] * 32, dtype=dtype).repeat(2, 1)
    assert torch.equal(round_trip(codec_named(name, rounding), x).nan_to_num(), x.nan_to_num())


@lossy
def test_codecs_work_on_values_that_are_not_contiguous(codec: Codec) -> None:
    x = torch.randn(2, 16, 4, 32).transpose(1, 2)
    assert torch.equal(round_trip(codec, x), round_trip(codec, x.contiguous()))


@given(rows=st.integers(1, 4), groups=st.integers(1, 12), size=st.sampled_from([8, 16, 32, 64, 24]))
def test_bits_are_the_very_mask_in_an_eighth_of_the_bytes(
    rows: int, groups: int, size: int
) -> None:
    codec, mask = codec_named("bits"), torch.rand(2, rows, groups * size) > 0.4
    assert codec.is_lossless
    assert codec.accepts(mask)
    (words,) = codec.encode(mask)
    assert words.numel() * words.element_size() == mask.numel() // 8
    assert codec.kept_bytes(mask.shape, mask.dtype) == mask.numel() // 8
    decoded = codec.decode((words,), torch.bool)
    assert decoded.dtype == torch.bool
    assert torch.equal(decoded, mask)


def test_an_unknown_codec_is_named_with_those_there_are() -> None:
    with pytest.raises(
        OptionError, match=r"'int3' \(accepted: int8, fp8_e4m3, int6, int4, bf16, bits"
    ):
        codec_named("int3")


@pytest.mark.parametrize(
    ("shape", "dtype", "accepted"),
    [
        ((2, 8), torch.float32, {*LOSSY, "bf16"}),
        ((2, 9), torch.float32, {"int8", "fp8_e4m3", "bf16"}),
        ((2, 8), torch.bfloat16, set(LOSSY)),
        ((2, 8), torch.float8_e4m3fn, set()),
        ((2, 8), torch.float64, set()),
        ((2, 8), torch.int64, set()),
        ((2, 8), torch.bool, {"bits"}),
        ((2, 9), torch.bool, set()),
        ((8,), torch.float32, set()),
        ((2, 0), torch.float32, set()),
        ((2, 1), torch.float32, {"int8", "fp8_e4m3"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value),
)
def test_which_values_each_codec_takes(
    shape: tuple[int, ...], dtype: torch.dtype, accepted: set[str]
) -> None:
    value = torch.zeros(shape, dtype=dtype)
    assert {name for name in KNOWN_CODECS if codec_named(name).accepts(value)} == accepted


@settings(max_examples=50)
@given(value=st.floats(width=32))
def test_bf16_is_the_nearest_of_its_values(value: float) -> None:
    """Finite values stay finite: those beyond the largest are the largest."""
    codec, x = codec_named("bf16"), torch.tensor([[value] * 8])
    (kept,) = codec.encode(x)
    back = codec.decode((kept,), torch.float32)
    end = torch.finfo(torch.bfloat16).max
    expected = x if math.isinf(value) else x.clamp(-end, end).to(torch.bfloat16).float()
    assert kept.dtype == torch.bfloat16
    assert torch.equal(back, expected) or bool((x.isnan() & back.isnan()).all())
    assert bool(((back - x).abs() <= 2.0**-8 * x.abs() + 1e-40).all()) or not math.isfinite(value)


def test_bf16_keeps_half_the_bytes_with_a_quarter_of_the_error_of_int8() -> None:
    codec, x = codec_named("bf16"), gaussian(512, 1024)
    assert codec.kept_bytes(x.shape, x.dtype) == x.numel() * x.element_size() // 2
    assert relative_error(round_trip(codec, x), x) == pytest.approx(codec.relative_error, rel=0.02)
    assert 0.2 < codec.relative_error / codec_named("int8").relative_error < 0.3
