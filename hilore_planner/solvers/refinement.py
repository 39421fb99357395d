"""Where the integer program tells apart when a unit is needed, and how that is refined.

Early demand makes a recomputed unit's memory depend on which readers are recomputed. Writing that
out for every unit and position would square the program, so it starts with none of it, a relaxation
that counts too little, and is refined at the positions where a solution's replay is over the cap
(lazy generation of rows and columns).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field, replace

from hilore_planner.solvers.problem import Bytes, PositionIndex


@dataclass(slots=True)
class Refinement:
    """The parts of the exact program that are written out; grows only.

    Attributes:
        peaks: positions with a peak row, ascending.
        breaks: by unit, positions at which the program decides whether the unit is demanded by
            then, ascending.
        tails: by unit, positions past its sure last need at which the program decides whether it is
            still needed.
        guard_bytes: taken off the cap where the solver's tolerance alone let a peak over it.
        guard_risk: taken off the risk budget, as a part of it, likewise.
    """

    peaks: list[PositionIndex] = field(default_factory=list)
    breaks: dict[int, list[PositionIndex]] = field(default_factory=dict)
    tails: dict[int, list[PositionIndex]] = field(default_factory=dict)
    guard_bytes: Bytes = 0
    guard_risk: float = 0.0

    def bounds(self) -> bool:
        """Whether the program is a relaxation: its bound holds for every placement of the structure."""
        return not (self.guard_bytes or self.guard_risk)

    def copy(self) -> Refinement:
        """One that grows by itself."""
        return replace(
            self,
            peaks=list(self.peaks),
            breaks={unit: list(breaks) for unit, breaks in self.breaks.items()},
            tails={unit: list(tails) for unit, tails in self.tails.items()},
        )

    def add_peak(self, position: PositionIndex) -> bool:
        """Write out the peak row at ``position``; False if it is there already."""
        return _insert(self.peaks, position)

    def add_break(self, unit: int, position: PositionIndex) -> bool:
        """Decide whether ``unit`` is demanded by ``position``; False if decided already."""
        return _insert(self.breaks.setdefault(unit, []), position)

    def add_tail(self, unit: int, position: PositionIndex) -> bool:
        """Decide whether ``unit`` is still needed at ``position``; False if decided already."""
        return _insert(self.tails.setdefault(unit, []), position)

    def break_before(self, unit: int, position: PositionIndex) -> PositionIndex | None:
        """The last break at or before: demanded by then is demanded by ``position``."""
        breaks = self.breaks.get(unit, [])
        found = bisect_right(breaks, position)
        return breaks[found - 1] if found else None

    def break_after(self, unit: int, position: PositionIndex) -> PositionIndex | None:
        """The first break at or after: not demanded by then is not demanded by ``position``."""
        breaks = self.breaks.get(unit, [])
        found = bisect_left(breaks, position)
        return breaks[found] if found < len(breaks) else None

    def tail_after(self, unit: int, position: PositionIndex) -> PositionIndex | None:
        """The first tail at or after ``position``: needed then is needed at ``position``."""
        tails = self.tails.get(unit, [])
        found = bisect_left(tails, position)
        return tails[found] if found < len(tails) else None


def _insert(positions: list[PositionIndex], position: PositionIndex) -> bool:
    if position in positions:
        return False
    insort(positions, position)
    return True
