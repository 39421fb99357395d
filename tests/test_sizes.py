from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.errors import OptionError
from hilore_planner.sizes import format_bytes, format_ns, parse_bytes, parse_range, parse_size

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("26GiB", 26 * GIB),
        ("26 GB", 26 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 gib", 3 * GIB // 2),
        (".5GiB", GIB // 2),
        ("64 kB", 64_000),
        ("64KiB", 65_536),
        ("1_024", 1024),
        ("7", 7),
        ("2TiB", 2 * 2**40),
        (123, 123),
        ("80%", 0.8),
        ("0.8", 0.8),
        (0.8, 0.8),
        ("100%", 1.0),
    ],
)
def test_reads(text: object, size: float) -> None:
    read = parse_size(text)
    assert read == size
    assert type(read) is type(size)


@pytest.mark.parametrize(
    "value",
    [
        *("", "lots", "26GX", "GiB", "26 Gi B", "1e9", "-1GiB", "0", "0.4B", "120%", "0%"),
        *(0, -5, 1.5, 2**80, float("nan"), float("inf"), True, None, [1]),
    ],
)
def test_refuses_naming_the_value_and_what_is_accepted(value: object) -> None:
    with pytest.raises(OptionError) as error:
        parse_size(value, name="memory_cap")
    assert str(error.value).startswith(f"memory_cap is {value!r}; accepted: bytes as an integer")


def test_a_share_of_no_device_is_refused() -> None:
    with pytest.raises(OptionError, match=r"cap is '80%', a share of a device"):
        parse_bytes("80%", name="cap")


def test_ranges_hold_both_ends() -> None:
    assert parse_range("1GiB:3GiB:1GiB") == (GIB, 2 * GIB, 3 * GIB)
    assert parse_range("1GiB:2.9GiB:1GiB") == (GIB, 2 * GIB)
    assert parse_range("2GiB, 1GiB") == (2 * GIB, GIB)


@pytest.mark.parametrize("text", ["3GiB:1GiB:1GiB", "1:2000000:1", "1GiB:2GiB", "1GiB:x:1GiB", ""])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="caps is"):
        parse_range(text, name="caps")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (512 * 2**20, "512.0 MiB"),
        (30 * GIB, "30.00 GiB"),
        (-3 * GIB, "-3.00 GiB"),
    ],
)
def test_writes_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_writes_times_and_signs() -> None:
    assert format_ns(186_840_000) == "186.8 ms"
    assert format_ns(1_250_000_000) == "1.25 s"
    assert format_ns(12_400) == "12.4 us"
    assert format_ns(999) == "999 ns"
    assert format_ns(-2_000_000, sign=True) == "-2.0 ms"
    assert format_ns(0, sign=True) == "+0 ns"
    assert format_bytes(GIB, sign=True) == "+1.00 GiB"


@given(st.integers(1, 2**50))
def test_what_is_written_reads_back_to_the_digits_shown(count: int) -> None:
    number, unit = format_bytes(count).split()
    decimals = len(number.partition(".")[2])
    # Half of the last digit shown, and less than a byte cut off in reading.
    tolerance_bytes = parse_bytes(f"1 {unit}") * 10.0**-decimals / 2 + 1 if decimals else 0
    assert abs(parse_bytes(f"{number} {unit}") - count) <= tolerance_bytes
