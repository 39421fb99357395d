"""Rows in tiers: names, the layouts that are split, bytes, error, and what theory promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.codec_names import DROP, Rows, TierNames, read_tiers
from hilore_planner.errors import OptionError
from hilore_planner.grpo.tiers import Tiers, make_tiers
from hilore_planner.passes.codecs import Tiered, codec_named
from hilore_planner.passes.codecs.offers import tiered_names

LEVELS = ("store", "int8", "fp8_e4m3", "int6", "int4", "bf16")
PADDED, PACKED = Rows(16, 8), Rows(120, 1)


def _tiered(name: str) -> Tiered:
    codec = codec_named(name)
    assert isinstance(codec, Tiered)
    return codec


def _gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@st.composite
def tier_names(draw: st.DrawFn) -> TierNames:
    rows = draw(st.sampled_from([PADDED, PACKED, Rows(3, 2560)]))
    inner = st.lists(st.integers(1, rows.sequences - 1), min_size=1, max_size=2, unique=True)
    stops = (*sorted(draw(inner)), rows.sequences)
    codecs = draw(
        st.lists(st.sampled_from(LEVELS), min_size=len(stops), max_size=len(stops), unique=True)
    )
    if draw(st.booleans()):
        codecs[-1] = DROP
    return TierNames(tuple(codecs), stops, rows)


@given(names=tier_names())
def test_names_are_read_back(names: TierNames) -> None:
    assert read_tiers(str(names)) == names
    assert codec_named(str(names)).name == str(names)


@pytest.mark.parametrize(
    "name",
    [
        "int8[:4/16x8]",
        "int8[:4/16x8]+",
        "int8+int4",
        "drop",
        "store",
        "drop[:4/16x8]+int8",
        "bits[:4/16x8]+int8",
        "int8[:4/16x8]+bits",
        "int8[:4/16x8]+int3",
        "int8[:0/16x8]+int4",
        "int8[:16/16x8]+int4",
        "int8[:8/16x8]+int6[:4/16x8]+int4",
        "int8[:4/16x8]+int6[:8/17x8]+int4",
        "int8[:4/16x8]+int8",
        "int8[:4/16x1]+int4",
        "int8[:4/16x0]+int4",
        "int8[:04/16x8]+int4",
        "int8[:25%]+int4",
    ],
)
def test_what_is_no_name_is_refused_with_what_is(name: str) -> None:
    with pytest.raises(OptionError, match=r"unknown codec .* tiers as in int8\[:4/16x2560\]"):
        codec_named(name)


@pytest.mark.parametrize(
    ("shape", "is_padded", "is_packed"),
    [
        ((16, 8, 32), True, False),  # sequences, tokens, features
        ((16, 4, 8, 32), True, False),  # sequences, heads, tokens, features
        ((128, 32), True, False),  # sequences by tokens, features
        ((120, 32), False, True),
        ((1, 120, 32), False, True),
        ((8, 32), False, False),  # a table of positions
        ((1, 8, 32), False, False),
        ((16, 32), False, False),  # one row a sequence
        ((16, 7, 32), False, False),
        ((4, 120, 32), False, False),
        ((16, 32, 8), False, False),  # tokens last: no features
        ((16, 8, 30), False, False),  # int4 does not take them
    ],
)
def test_values_are_split_where_their_rows_are_the_batchs(
    shape: Sequence[int], is_padded: bool, is_packed: bool
) -> None:
    value = torch.zeros(shape, dtype=torch.bfloat16)
    assert _tiered("int8[:4/16x8]+int4").accepts(value) is is_padded
    assert _tiered("int8[:30/120]+int4").accepts(value) is is_packed


@given(names=tier_names(), data=st.data())
def test_each_tier_is_what_its_codec_makes_of_its_rows(
    names: TierNames, data: st.DataObject
) -> None:
    b, t = names.rows.sequences, min(names.rows.tokens, 8)
    names = TierNames(names.codecs, names.stops, Rows(b, t))
    padded = [(b, t, 32), (b, 2, t, 32), (b * t, 32)]
    shape = data.draw(st.sampled_from(padded if t > 1 else [(b, 32), (1, b, 32)]))
    codec, x = _tiered(str(names)), _gaussian(*shape)
    dim, each = (1, 1) if shape[0] == 1 else (0, shape[0] // b)
    parts = codec.encode(x)
    assert len(parts) == codec.num_parts
    assert sum(p.numel() * p.element_size() for p in parts) == codec.kept_bytes(shape, x.dtype)
    decoded = codec.decode(parts, x.dtype)
    assert decoded.shape == x.shape
    for level, (start, stop) in zip(names.codecs, pairwise((0, *names.stops)), strict=True):
        rows = x.narrow(dim, start * each, (stop - start) * each)
        found = decoded.narrow(dim, start * each, (stop - start) * each)
        if level == DROP:
            assert not bool(found.any())
        elif level == "store":
            assert torch.equal(found, rows)
        else:
            plain = codec_named(level)
            assert torch.equal(found, plain.decode(plain.encode(rows.contiguous()), x.dtype))


def test_stored_tiers_have_storages_of_their_own() -> None:
    x = _gaussian(16, 8, 32)
    (kept,) = _tiered("store[:4/16x8]+drop").encode(x)
    assert kept.untyped_storage().nbytes() == x.untyped_storage().nbytes() // 4


def test_dropped_rows_count_whole_unless_nothing_depends_on_them() -> None:
    codec = _tiered("store[:12/16x8]+drop")
    assert codec.error([0.75, 0.25]) == codec.relative_error == 0.5
    assert codec.error([1.0, 0.0]) == 0.0
    with pytest.raises(ValueError, match="zip"):
        codec.error([1.0])


WINNER = make_tiers([70.0] + [10 / 7] * 7, [10] * 8, [True] * 8, 2)
"""One of eight responses is right: exposure sqrt(7) against 1/sqrt(7), whose squares have a mean of one."""


def _weighted_error(name: str, squares: torch.Tensor, x: torch.Tensor) -> float:
    codec = codec_named(name)
    wrong = (codec.decode(codec.encode(x), x.dtype) - x).double().square().mean((1, 2))
    return math.sqrt((squares * wrong).sum() / squares.sum() / x.double().square().mean())


def _bits(name: str, x: torch.Tensor) -> float:
    return 8 * codec_named(name).kept_bytes(x.shape, torch.bfloat16) / x.numel()


@pytest.mark.parametrize(
    ("name", "fewer", "more"),
    [("int6[:1/8x10]+int4", "int4", "int6"), ("int8[:1/8x10]+int6", "int6", "int8")],
)
def test_bits_spread_by_exposure_save_what_theory_says(name: str, fewer: str, more: str) -> None:
    """At equal bytes the error weighted by exposure falls by 2 to the bits saved, 2.07.

    What one codec for all rows would have at these bytes lies between two codecs: error falls exponentially in bits.
    """
    squares = torch.tensor([7.0] + [1 / 7] * 7, dtype=torch.float64)
    x = _gaussian(8, 10, 4096)
    tiered, low, high = (_weighted_error(n, squares, x) for n in (name, fewer, more))
    assert tiered == pytest.approx(_tiered(name).error([7 / 8, 1 / 8]), rel=0.03)
    place = (_bits(name, x) - _bits(fewer, x)) / (_bits(more, x) - _bits(fewer, x))
    uniform = low * (high / low) ** place
    assert WINNER.bits == pytest.approx(0.5 * math.log2(7**0.75))
    assert 0.9 * 2**WINNER.bits <= uniform / tiered <= 1.02 * 2**WINNER.bits


def test_offers_are_those_that_no_other_beats() -> None:
    names = tiered_names(WINNER, Rows(8, 10))
    assert names[0] == "int6[:1/8x10]+int4"
    codecs = [_tiered(name) for name in names]
    sizes = [codec.kept_bytes((80, 1024), torch.bfloat16) for codec in codecs]
    errors = [codec.error([7 / 8, 1 / 8]) for codec in codecs]
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    for plain in map(codec_named, ("int8", "int6", "int4")):
        size_bytes = plain.kept_bytes((80, 1024), torch.bfloat16)
        beaten = [e for s, e in zip(sizes, errors, strict=True) if s >= size_bytes]
        assert all(error < plain.relative_error for error in beaten)


def test_offers_use_the_codecs_that_are_allowed_and_drop_dead_and_filler_rows() -> None:
    tiers = make_tiers([40.0, 40.0, 1.0, 0.0], [10] * 4, [True] * 3 + [False], 2)
    assert tiered_names(tiers, Rows(5, 10), ["int8"]) == (
        "int8[:3/5x10]+drop",
        "store[:2/5x10]+int8[:3/5x10]+drop",
        "store[:3/5x10]+drop",
    )
    assert tiered_names(tiers, Rows(48, 1), ["int8"])[0] == "int8[:30/48]+drop"
    with pytest.raises(OptionError, match=r"rows is 3x10, but the tiers cover 4"):
        tiered_names(tiers, Rows(3, 10))


def test_nothing_is_offered_where_nothing_is_live_or_all_is_alike() -> None:
    assert tiered_names(Tiers((), ()), Rows(4, 10)) == ()
    assert tiered_names(make_tiers([0.0], [10], [False], 2), Rows(1, 10)) == ()
    assert tiered_names(make_tiers([1.0] * 4, [10] * 4, [True] * 4, 1), Rows(4, 10)) == ()


def test_updates_in_fp32_are_offered_bf16_too() -> None:
    names = tiered_names(WINNER, Rows(8, 10), dtype=torch.float32)
    assert "bf16[:1/8x10]+int8" in names
    assert not any("bf16" in name for name in tiered_names(WINNER, Rows(8, 10)))
