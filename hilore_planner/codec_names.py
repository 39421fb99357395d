"""Names of codecs, and the grammar of tiered ones; known without torch.

A tiered name lists codecs with the rows they are for: ``int8[:4/16x2560]+int4`` keeps the first 4 of 16 sequences of
2560 rows each by int8 and the rest by int4; ``int8[:3100/12288]+drop`` keeps the first 3100 of 12288 packed rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hilore_planner.errors import OptionError

KNOWN_CODECS = ("int8", "fp8_e4m3", "int6", "int4", "bf16", "bits")
STORE, DROP = "store", "drop"
_TIER_CODECS = ("int8", "fp8_e4m3", "int6", "int4", "bf16", STORE)

ACCEPTED_CODECS = (
    f"{', '.join(KNOWN_CODECS)}, or tiers as in int8[:4/16x2560]+int4: "
    f"{', '.join(_TIER_CODECS)}, and {DROP} last"
)
_TIER = re.compile(r"(\w+)\[:(\d+)/(\d+)(?:x(\d+))?\]")


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch's rows: ``sequences`` of ``tokens`` each. Packed rows count as sequences of one token."""

    sequences: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.sequences}x{self.tokens}" if self.tokens > 1 else str(self.sequences)


@dataclass(frozen=True, slots=True)
class TierNames:
    """A tiered name, read: ``codecs[i]`` keeps the sequences ``stops[i - 1]`` to ``stops[i]`` of ``rows``."""

    codecs: tuple[str, ...]
    stops: tuple[int, ...]
    """Ends of all tiers; the last is ``rows.sequences``."""
    rows: Rows

    def __str__(self) -> str:
        inner = zip(self.codecs[:-1], self.stops[:-1], strict=True)
        return "+".join([*(f"{c}[:{stop}/{self.rows}]" for c, stop in inner), self.codecs[-1]])


def read_tiers(name: str) -> TierNames | None:
    """What a tiered name says; None for the name of a plain codec.

    Raises:
        OptionError: ``name`` is neither; the message says what is accepted.
    """
    if name in KNOWN_CODECS:
        return None
    *heads, last = name.split("+")
    matches = [_TIER.fullmatch(head) for head in heads]
    found = [match.groups() for match in matches if match]
    rows = {Rows(int(total), int(tokens or 1)) for _, _, total, tokens in found}
    if len(found) != len(heads) or len(rows) != 1:
        raise _unknown(name)
    (layout,) = rows
    codecs = (*(codec for codec, *_ in found), last)
    stops = (*(int(stop) for _, stop, *_ in found), layout.sequences)
    tiers = TierNames(codecs, stops, layout)
    if not _is_valid(tiers) or str(tiers) != name:
        raise _unknown(name)
    return tiers


def check_codec(name: str) -> str:
    """``name`` itself if it names a codec.

    Raises:
        OptionError: it does not.
    """
    read_tiers(name)
    return name


def _is_valid(tiers: TierNames) -> bool:
    is_ascending = all(a < b for a, b in pairwise((0, *tiers.stops)))
    *kept, last = tiers.codecs
    return (
        is_ascending
        and tiers.rows.tokens > 0
        and set(kept) <= set(_TIER_CODECS)
        and last in (*_TIER_CODECS, DROP)
        and _differ(tiers.codecs)
    )


def _differ(codecs: Sequence[str]) -> bool:
    return all(a != b for a, b in pairwise(codecs))


def _unknown(name: str) -> OptionError:
    return OptionError(f"unknown codec {name!r} (accepted: {ACCEPTED_CODECS})")
