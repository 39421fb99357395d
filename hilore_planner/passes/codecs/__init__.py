"""Codecs: how a smaller copy of an activation is made and read back."""

from hilore_planner.passes import compat
from hilore_planner.passes.codecs.base import Codec, Rounding, is_wide_float
from hilore_planner.passes.codecs.choice import codec_for, offered_codec, rounding_for
from hilore_planner.passes.codecs.registry import codec_named
from hilore_planner.passes.codecs.tiered import Tiered

__all__ = [
    "Codec",
    "Rounding",
    "Tiered",
    "codec_for",
    "codec_named",
    "is_wide_float",
    "offered_codec",
    "rounding_for",
]

compat.tile_groups()
