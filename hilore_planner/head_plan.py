"""What a plan says of the language-model head; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["whole", "early", "rebuild"]
"""``whole``: not cut. ``early``: its gradient is taken in the forward. ``rebuild``: its logits are made once more in
backward."""


Totals = Literal["gradient", "float32"]
"""Dtype in which chunks' parts of the weight's gradient are added up: the gradient's own, or float32."""


@dataclass(frozen=True, slots=True)
class HeadWay:
    """One way to run a head, and what the region's plan would be with it."""

    form: Form
    chunks: int
    """0 where it is whole."""
    logits_bytes: int
    """Logits of one chunk, or all of them."""
    head_ns: int
    """Time it adds to the head."""
    objective_ns: int | None
    """Time the placement then adds; None where nothing fits the cap."""

    @property
    def added_ns(self) -> int | None:
        """Time that head and placement add together; None where nothing fits."""
        return None if self.objective_ns is None else self.head_ns + self.objective_ns


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """How a region's head is run."""

    form: Form = "whole"
    chunks: int = 0
    """Chunks of rows; 0 where it is whole."""
    logits_bytes: int = 0
    """Logits of one chunk, or all of them; 0 where no head was found."""
    head_ns: int = 0
    """Time it adds to the head."""
    totals: Totals = "gradient"
    reason: str = ""
    """Why it is whole, or why it is not early."""
    ways: tuple[HeadWay, ...] = ()
    """Those it was chosen from; empty where there was nothing to choose."""

    def __str__(self) -> str:
        if not self.chunks:
            return "whole"
        return f"{self.form}, {self.chunks} chunk{'s' if self.chunks > 1 else ''}"


NO_HEAD = HeadPlan(reason="the graph has no language-model head")
