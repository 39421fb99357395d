"""What classes are made inexact by where tiers are offered."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.calibration.ladders import Range, ladders, probe, ranges
from hilore_planner.codec_names import Rows, TierNames, read_tiers

CODECS = ("int8", "int6", "int4")
cuts = st.lists(st.sets(st.integers(1, 15), min_size=1, max_size=2).map(sorted), max_size=3)


@given(cuts=cuts, tokens=st.sampled_from([1, 512]))
def test_every_tier_is_made_of_whole_ranges(cuts: list[list[int]], tokens: int) -> None:
    rows = Rows(16, tokens)
    names = [str(TierNames(CODECS[: len(cut) + 1], (*cut, 16), rows)) for cut in cuts]
    found = ranges(names)
    ends = {0, 16, *(stop for cut in cuts for stop in cut)} if cuts else set()
    assert [(part.start, part.stop) for part in found] == list(pairwise(sorted(ends)))
    for place in range(16 if cuts else 0):
        inside = [part for part in found if part.has((place + 0.5) / 16)]
        assert [part.start <= place < part.stop for part in inside] == [True]
        tiers = read_tiers(inside[0].kept_by("int8"))
        assert tiers is not None
        kept = next(c for c, stop in zip(tiers.codecs, tiers.stops, strict=True) if place < stop)
        assert (kept, tiers.codecs.count("int8")) == ("int8", 1)


def test_batches_of_several_layouts_have_ranges_of_their_own() -> None:
    found = ranges(["int8[:1/4x9]+int4", "int8", "int8[:7/36]+int4"])
    padded, packed = Rows(4, 9), Rows(36, 1)
    assert found == (
        Range(0, 1, padded),
        Range(1, 4, padded),
        Range(0, 7, packed),
        Range(7, 36, packed),
    )


def test_ranges_are_kept_by_the_finest_codec_of_even_steps() -> None:
    assert probe(["bf16", "int4", "int8", "fp8_e4m3"]) == "int8"
    assert probe(["fp8_e4m3", "bf16"]) == "bf16"
    plain, tiers = ("bf16", "int8", "int4"), ["int8[:1/4x9]+int4"]
    assert ladders(plain, ()) == (("int4", "int8"), ("bf16",))
    assert ladders(plain, tiers) == (
        ("int4",),
        ("bf16",),
        ("int8",),
        ("int8[:1/4x9]+store",),
        ("store[:1/4x9]+int8",),
    )
