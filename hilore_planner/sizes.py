"""Sizes and times as people write and read them.

A size is an ``int`` (bytes) or a ``float`` in (0, 1] (a share of the device's memory).
"""

from __future__ import annotations

import re
from fractions import Fraction

from hilore_planner.errors import OptionError

Size = int | float

ACCEPTED = (
    "bytes as an integer, text such as '26GiB', '26 GB' or '512MiB' "
    "(units B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), or a share of the device such as '80%' or 0.8"
)

_UNIT_BYTES = {"": 1, "b": 1} | {
    f"{prefix}{infix}b": base**power
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}
_SIZE = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?|\.\d+)\s*(%|[a-z]*)", re.IGNORECASE)
_LARGEST_BYTES = 2**60


def parse_size(value: object, *, name: str = "size") -> Size:
    """Reads a size given as a number or as text.

    Args:
        value: ``26 * 2**30``, ``"26GiB"``, ``"26 GB"``, ``"80%"``, ``0.8``.
        name: what it is the size of, for the error.

    Returns:
        Bytes (``int``) or a share of the device in (0, 1] (``float``).

    Raises:
        OptionError: unreadable, zero, negative, or a share above 1.
    """
    if isinstance(value, str):
        size = _parse_text(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        size = value
    else:
        size = None
    limit = 1 if isinstance(size, float) else _LARGEST_BYTES
    if size is None or not 0 < size <= limit:
        raise OptionError(f"{name} is {value!r}; accepted: {ACCEPTED}")
    return size


def parse_bytes(value: object, *, name: str = "size") -> int:
    """Reads a size that must be in bytes, where no device is known to take a share of.

    Raises:
        OptionError: as ``parse_size``, and for a share of a device.
    """
    size = parse_size(value, name=name)
    if isinstance(size, float):
        raise OptionError(
            f"{name} is {value!r}, a share of a device, but here no device is known; "
            "give it in bytes, such as '26GiB'"
        )
    return size


def parse_range(text: str, *, name: str = "range") -> tuple[int, ...]:
    """Reads ``FIRST:LAST:STEP`` (both ends included) or a comma-separated list of sizes.

    Returns:
        Bytes, in the order written.

    Raises:
        OptionError: unreadable, an empty range, or more than 1000 sizes.
    """
    if ":" not in text:
        return tuple(parse_bytes(part.strip(), name=name) for part in text.split(","))
    parts = text.split(":")
    if len(parts) != 3:
        raise OptionError(f"{name} is {text!r}; accepted: FIRST:LAST:STEP or SIZE,SIZE,...")
    first, last, step = (parse_bytes(part.strip(), name=name) for part in parts)
    sizes = range(first, last + 1, step)
    if not 0 < len(sizes) <= 1000:
        raise OptionError(
            f"{name} is {text!r}, which holds {len(sizes)} sizes; accepted: 1 to 1000"
        )
    return tuple(sizes)


def _parse_text(text: str) -> Size | None:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit = Fraction(match[1].replace("_", "")), match[2].lower()
    if unit == "%":
        return float(number / 100)
    if unit == "" and "." in match[1]:
        return float(number)
    return int(number * _UNIT_BYTES[unit]) if unit in _UNIT_BYTES else None


def format_bytes(count: int, *, sign: bool = False) -> str:
    """Bytes for people, in binary units: ``27.94 GiB``, ``512.0 MiB``, ``640 B``.

    Args:
        count: bytes, of either sign.
        sign: write ``+`` before what is not negative.
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1023.5:
            break
        size, unit = size / 1024, larger
    digits = {"B": 0, "KiB": 1, "MiB": 1}.get(unit, 2)
    return f"{size:{'+' if sign else ''}.{digits}f} {unit}"


def format_ns(count: int, *, sign: bool = False) -> str:
    """Nanoseconds for people: ``186.8 ms``, ``12.4 us``, ``1.25 s``.

    Args:
        count: nanoseconds, of either sign.
        sign: write ``+`` before what is not negative.
    """
    plus = "+" if sign else ""
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(count) >= scale:
            return f"{count / scale:{plus}.{2 if unit == 's' else 1}f} {unit}"
    return f"{count:{plus}d} ns"
