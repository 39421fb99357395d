"""The placement problem and its solution, as plain data.

Problem
    A program runs over positions 0, 1, ..., P-1; those from ``first_backward`` on are backward.
    Forward makes units (tensors). Backward reads some of them. Each unit backward needs must be at
    hand when it is read: kept as it is (store), kept as a smaller copy (compress) or made again from
    its parents (recompute). Choose so that the memory alive at every position stays under the cap,
    the error added to the gradient stays in its budget, and the time added is least.

What memory a choice costs (the one definition; program and verifier each implement it)
    demand[u]   the first backward position where u must be at hand: the least of its own first
                ``read_at`` and of demand[v] over the recomputed units v that list u as a parent.
    last[u]     the last position that needs u: the greatest of its last ``read_at`` and of demand[v]
                over the recomputed units v that list u as a parent. A unit with neither is not at
                hand at all.
    store       kept_bytes at forward positions k > released_at, and at backward positions
                k <= last[u].
    compress f  f.kept_bytes at forward positions k >= made_at, and at backward positions
                k <= demand[u] where the decoded value is written out (rebuilt_bytes > 0), else
                k <= last[u]; further rebuilt_bytes at demand[u] <= k <= last[u].
    recompute   rebuilt_bytes at demand[u] <= k <= last[u].
    Up to released_at forward itself holds the value; that is part of the position's fixed_bytes.

Units: bytes and nanoseconds are integers; risk is in parts of the squared gradient norm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Bytes = int
Nanoseconds = int
PositionIndex = int
NEVER: PositionIndex = -1
"""Stands for a position that does not exist, below every real one."""
Status = Literal["optimal", "feasible", "infeasible", "undecided"]
"""``undecided``: the time limit passed with no placement found, and none ruled out."""
_COMPRESS = "compress:"


def compress_action(codec: str) -> str:
    """The name in a placement of keeping a unit by a codec."""
    return _COMPRESS + codec


def kept_codec(action: str) -> str | None:
    """The codec that an action keeps a unit by; None for other actions."""
    return action.removeprefix(_COMPRESS) if action.startswith(_COMPRESS) else None


@dataclass(frozen=True, slots=True)
class CompressedForm:
    """One codec's offer for one unit."""

    codec: str
    kept_bytes: Bytes
    encode_ns: Nanoseconds
    decode_ns: Nanoseconds
    risk: float


@dataclass(frozen=True, slots=True)
class Unit:
    """One forward value that backward reads, or that recomputing another unit would read."""

    name: str
    kept_bytes: Bytes
    """Held from forward to the last reader when stored."""
    rebuilt_bytes: Bytes
    """Held in backward from rebuilding or decoding to the last reader; 0 if it stays in registers."""
    recompute_ns: Nanoseconds
    keep_ns: Nanoseconds
    """What storing costs: writing out a value that fusion would have kept in registers."""
    parents: tuple[str, ...]
    """Units that recomputing this one reads. Values that are always at hand are not listed."""
    made_at: PositionIndex
    released_at: PositionIndex
    """Last forward position at which forward itself holds the value; made_at - 1 where it never
    writes it out."""
    read_at: tuple[PositionIndex, ...]
    """Backward positions that read it, ascending; empty for interior units."""
    can_store: bool = True
    can_recompute: bool = True
    codecs: tuple[CompressedForm, ...] = ()
    inexact_risk: float = 0.0
    """Added once if the unit is recomputed from something inexact."""
    finer_inexact_risks: tuple[float, ...] = ()
    """The same where a placement's coarsest codec is the first of the problem's ladder, the second, and so on to the
    last but one, ascending; empty where no ladder is."""
    kind: str = ""
    """Equal for units that are the same but for the layer they are in."""
    layer: int | None = None

    @property
    def inexact_risks(self) -> tuple[float, ...]:
        """What is added if it is recomputed from something inexact, by the coarsest codec of the placement."""
        return (*self.finer_inexact_risks, self.inexact_risk)


@dataclass(frozen=True, slots=True)
class Position:
    """One step of the program at which the live set may change."""

    label: str
    fixed_bytes: Bytes
    """Alive there whatever is decided: inputs, weights, gradients, temporaries, workspaces."""


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Everything the solver needs; units are listed parents first."""

    units: tuple[Unit, ...]
    positions: tuple[Position, ...]
    first_backward: PositionIndex
    memory_cap_bytes: Bytes
    gradient_error: float = 0.0
    """The budget epsilon: added risk must not exceed its square."""
    ladder: tuple[str, ...] = ()
    """Codecs that lose something, finest first. What is recomputed from copies is charged for the coarsest of them that
    the placement uses; without a ladder for all there are."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A placement and what is known of its quality.

    ``placement`` maps a unit's name to ``"store"``, ``"recompute"`` or ``"compress:CODEC"``; units
    that are not at hand in backward are absent. ``infeasible``, which is proven, and ``undecided``
    are statuses: then the placement is empty, and the smallest cap that a placement was found for,
    that placement (``witness``) and the units that hold it up are given; ``gap`` is that cap's:
    none exists below ``(1 - gap)`` of it. Solving for that cap from the witness cannot fail.
    """

    status: Status
    engine: str
    placement: dict[str, str]
    objective_ns: Nanoseconds
    bound_ns: Nanoseconds
    gap: float
    solver_seconds: float
    peak_bytes: Bytes
    peak_position: PositionIndex
    saved_bytes: Bytes
    """Kept from forward to backward: stored and compressed copies."""
    risk: float
    smallest_feasible_cap_bytes: Bytes | None = None
    """None where no cap would do, or none was found that does."""
    holding: tuple[str, ...] = ()
    witness: dict[str, str] = field(default_factory=dict)
    """The placement whose peak is ``smallest_feasible_cap_bytes``."""

    @property
    def is_placed(self) -> bool:
        """Whether it has a placement."""
        return self.status in ("optimal", "feasible")
