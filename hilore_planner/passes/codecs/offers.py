"""Which tiered codecs are worth offering for a batch's exposure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement, groupby

import torch

from hilore_planner.codec_names import DROP, KNOWN_CODECS, STORE, Rows, TierNames
from hilore_planner.errors import OptionError
from hilore_planner.grpo.tiers import Tier, Tiers
from hilore_planner.passes.codecs.registry import codec_named, tiered_codec

_FEATURES = 1024
"""Of the value that sizes are compared on."""


def tiered_names(
    tiers: Tiers,
    rows: Rows,
    codecs: Sequence[str] = KNOWN_CODECS,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[str, ...]:
    """Names of tiered codecs for sequences in the order of ``tiers``, smallest first.

    Levels are the ``codecs`` that lose something, and storing; more exposed tiers never get a coarser one. Dead
    sequences, and filler that brings the batch to the size of ``rows``, are dropped. Left out is what another name, a
    plain codec or storing all does as well in fewer bytes.

    Args:
        tiers: of ``hilore_planner.exposure(...).tiers()``.
        rows: how the rows of the batch are laid out: Rows(B, T) padded, Rows(N, 1) packed.
        codecs: plain codecs that the plan may use.
        dtype: of the update's activations.

    Raises:
        OptionError: the tiers cover more sequences, or packed rows, than ``rows`` has.
    """
    live = [tier for tier in tiers.tiers if tier.is_live]
    ends = [_end(tier, rows) for tier in live]
    if tiers.tiers and _end(tiers.tiers[-1], rows) > rows.sequences:
        raise OptionError(
            f"rows is {rows}, but the tiers cover {_end(tiers.tiers[-1], rows)}; accepted: as many or more"
        )
    if not live:
        return ()
    exposed = [tier.mean_square * (tier.row_stop - tier.row_start) for tier in live]
    shares = [part / (sum(exposed) or 1.0) for part in exposed]
    known = map(codec_named, codecs)
    value = torch.empty((1, _FEATURES), dtype=dtype, device="meta")
    plain = [codec for codec in known if not codec.is_lossless and codec.accepts(value)]
    levels = [STORE, *(c.name for c in sorted(plain, key=lambda c: c.relative_error))]
    offers = [
        _offer(choice, ends, shares, rows, dtype)
        for choice in combinations_with_replacement(levels, len(live))
    ]
    return tuple(name for name, _, _ in _best(offers) if "[" in name)


_Offer = tuple[str, int, float]
"""Name, bytes and relative error."""


def _end(tier: Tier, rows: Rows) -> int:
    return tier.stop if rows.tokens > 1 else tier.row_stop


def _offer(
    choice: Sequence[str],
    ends: Sequence[int],
    shares: Sequence[float],
    rows: Rows,
    dtype: torch.dtype,
) -> _Offer:
    """What one level for each live tier costs; neighbouring tiers of one level are one."""
    merged: list[tuple[str, int, float]] = []
    for level, group in groupby(zip(choice, ends, shares, strict=True), key=lambda item: item[0]):
        members = list(group)
        merged.append((level, members[-1][1], sum(share for _, _, share in members)))
    if merged[-1][1] < rows.sequences:
        merged.append((DROP, rows.sequences, 0.0))
    names, stops, parts = zip(*merged, strict=True)
    codec = tiered_codec(TierNames(names, stops, rows))
    size_bytes = codec.kept_bytes((rows.sequences * rows.tokens, _FEATURES), dtype)
    return codec.name, size_bytes, codec.error(parts)


def _best(offers: Iterable[_Offer]) -> list[_Offer]:
    """Those that no other beats in bytes and error, smallest first."""
    found: list[_Offer] = []
    for offer in sorted(offers, key=lambda offer: (offer[1], offer[2])):
        if not found or offer[2] < found[-1][2]:
            found.append(offer)
    return found
