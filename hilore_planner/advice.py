"""What to change in a program where no placement helps; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that slows an update, or fills memory, whatever is planned.

    Attributes:
        what: the fault, with where it applies.
        source: ``file.py:line`` of the first place; empty where it has none.
        count: how many places.
        size_bytes: memory at fault, all places together.
        time_ns: time at fault, at least, by roofline; None where it costs memory only.
        remedy: what to do about it.
    """

    what: str
    source: str
    count: int
    size_bytes: int
    time_ns: int | None
    remedy: str
