"""Advice, a line each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from rich.text import Text

from hilore_planner.advice import Advice
from hilore_planner.render import words
from hilore_planner.sizes import format_bytes, format_ns


def slowing(advice: Iterable[Advice], width: int) -> list[Text]:
    """What costs time whatever is planned, under its heading; nothing where there is none."""
    return _section("What slows the update whatever is planned", _slowing(advice), width)


def filling(advice: Iterable[Advice], peak_bytes: int, width: int) -> list[Text]:
    """What fills the peak whatever is planned, under its heading; nothing where there is none."""
    return _section("What no placement lowers", _filling(advice, peak_bytes), width)


def _section(heading: str, sentences: Iterator[str], width: int) -> list[Text]:
    lines = [
        Text(line)
        for sentence in sentences
        for line in textwrap.wrap(
            sentence, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    ]
    return [Text(), Text(heading, style="bold"), Text(), *lines] if lines else []


def _slowing(advice: Iterable[Advice]) -> Iterator[str]:
    for found in advice:
        if found.time_ns is not None:
            cost = f"at least {format_ns(found.time_ns)}, {format_bytes(found.size_bytes)}"
            where = words.count(found.count, "place")
            first = f" from {found.source}" if found.source else ""
            yield f"{found.what}: {where}{first} ({cost}): {found.remedy}"


def _filling(advice: Iterable[Advice], peak_bytes: int) -> Iterator[str]:
    for found in advice:
        if found.time_ns is None:
            share = f"{found.size_bytes / max(peak_bytes, 1):.0%} of the peak"
            yield f"{found.what} ({format_bytes(found.size_bytes)}, {share}): {found.remedy}"
