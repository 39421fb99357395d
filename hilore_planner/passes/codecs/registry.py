"""The codecs there are, by name."""

from __future__ import annotations

import functools

from hilore_planner.codec_names import DROP, TierNames, read_tiers
from hilore_planner.passes.codecs.base import Codec, Rounding
from hilore_planner.passes.codecs.bits import Bits
from hilore_planner.passes.codecs.floats import Bf16, Fp8E4M3
from hilore_planner.passes.codecs.integers import Int8, PackedInt
from hilore_planner.passes.codecs.tiered import Store, Tiered


def _plain(rounding: Rounding) -> dict[str, Codec]:
    codecs: tuple[Codec, ...] = (
        Int8(rounding),
        Fp8E4M3(rounding),
        PackedInt(6, 0.0222, 0.0223, rounding),
        PackedInt(4, 0.0976, 0.0990, rounding),
        Bf16(),
        Bits(),
        Store(),
    )
    return {codec.name: codec for codec in codecs}


_CODECS: dict[Rounding, dict[str, Codec]] = {
    "nearest": _plain("nearest"),
    "stochastic": _plain("stochastic"),
}


@functools.cache
def codec_named(name: str, rounding: Rounding = "nearest") -> Codec:
    """The codec called ``name``, plain or tiered.

    Raises:
        OptionError: there is none; the message says what is accepted.
    """
    tiers = read_tiers(name)
    return _CODECS[rounding][name] if tiers is None else tiered_codec(tiers, rounding)


def tiered_codec(names: TierNames, rounding: Rounding = "nearest") -> Tiered:
    """The tiered codec that ``names`` describe."""
    kept = tuple(_CODECS[rounding][codec] for codec in names.codecs if codec != DROP)
    return Tiered(names, kept)
