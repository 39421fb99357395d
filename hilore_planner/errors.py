"""What goes wrong, said so that a person can act on it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class HiloreError(Exception):
    """Base of every error this package raises on purpose.

    The message names the thing, its value, what is accepted, and what to do.
    """


class OptionError(HiloreError):
    """An option that is unknown, unreadable or out of range."""


class PlanFileError(HiloreError):
    """A plan file that cannot be read, is damaged, or belongs to another graph."""


class NoPlacementError(HiloreError):
    """There is no placement for the cap: none exists, or none was found.

    Attributes:
        smallest_feasible_cap_bytes: the smallest cap that a placement was found for; None if for none.
        holding: the units that hold that cap up, largest first.
        witness: the placement for that cap, by unit; solving for the cap with it as ``warm_start`` cannot fail.
    """

    def __init__(
        self,
        message: str,
        *,
        smallest_feasible_cap_bytes: int | None,
        holding: tuple[str, ...],
        witness: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.smallest_feasible_cap_bytes = smallest_feasible_cap_bytes
        self.holding = holding
        self.witness = witness


class ProfileError(HiloreError):
    """A risk profile that cannot be read, or does not cover what is asked of it."""


class InfeasibleError(NoPlacementError):
    """No placement fits the cap: that is proven."""


class SolverLimitError(NoPlacementError):
    """The time limit passed before any placement was found for the cap, or shown not to exist."""


class SolverError(HiloreError):
    """The linear solver gave up on a program, as on one whose numbers are too far apart."""


class RegionError(HiloreError):
    """A region of the program that cannot be planned; the message says why."""


class PlacementError(HiloreError):
    """A placement that does not fit its problem.

    Attributes:
        unit: the unit at fault.
    """

    def __init__(self, unit: str, reason: str) -> None:
        super().__init__(f"placement of unit {unit!r}: {reason}")
        self.unit = unit
