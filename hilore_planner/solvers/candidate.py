"""A placement with its replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hilore_planner.solvers.problem import Bytes
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.verify import Replay, replay

_ROUNDING = 1e-9
"""Sums of the same risks in another order differ in the last digits."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement with its replay."""

    placement: dict[str, str]
    replay: Replay

    def fits(self, structure: Structure, cap_bytes: Bytes) -> bool:
        """Whether it is under the cap and in the risk budget."""
        return self.replay.peak_bytes <= cap_bytes and self.in_budget(structure)

    def in_budget(self, structure: Structure) -> bool:
        """Whether it is in the risk budget."""
        return self.replay.risk <= structure.risk_budget * (1 + _ROUNDING)


def candidate(structure: Structure, placement: Mapping[str, str]) -> Candidate:
    """Replay ``placement``."""
    return Candidate(dict(placement), replay(structure.problem, placement))
