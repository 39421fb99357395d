"""Decide whether and how finely the language-model head is cut; :func:`rewrite_head` then does it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch.fx import GraphModule

from hilore_planner.passes import compat
from hilore_planner.passes.head import HeadRefusal, HeadSite, plan_head
from hilore_planner.passes.head.shapes import tensor_of

HeadOption = Literal["auto", "off"] | int

_CHUNK_BYTES = 320 * 2**20
"""Logits of one chunk: large enough that its products run at full speed."""
_SMALL_BYTES = 64 * 2**20
"""Logits below this are left whole."""
_ROOM = 0.25
"""Share of the room under the cap that whole logits may take before a head is rebuilt, at a third more work."""


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """``chunks`` is 0 where the head stays whole, for ``reason``."""

    site: HeadSite | None
    chunks: int
    reason: str

    def __str__(self) -> str:
        if self.site is None or not self.chunks:
            return f"whole: {self.reason}"
        return f"{self.site.form}, {self.chunks} chunks"


def choose_head(gm: GraphModule, option: HeadOption, room_bytes: int) -> HeadChoice:
    """Look for a head and decide; ``room_bytes`` is what the cap leaves beyond what is held anyway.

    An early head costs nothing and is always cut. One that must compute its logits twice is cut only where whole
    logits would take much of the room.
    """
    if option == "off":
        return HeadChoice(None, 0, "option head is 'off'")
    site = plan_head(gm)
    if isinstance(site, HeadRefusal):
        return HeadChoice(None, 0, site.reason)
    logits = tensor_of(site.logits)
    assert logits is not None
    size = math.prod(compat.hint(extent) for extent in logits.shape) * logits.element_size()
    if isinstance(option, int):
        return HeadChoice(site, option, "")
    if size < _SMALL_BYTES:
        return HeadChoice(site, 0, "its logits are small")
    if site.form == "rebuild" and size < _ROOM * room_bytes:
        return HeadChoice(
            site, 0, "there is room for its logits, and cutting it would compute them twice"
        )
    return HeadChoice(site, math.ceil(size / _CHUNK_BYTES), "")
