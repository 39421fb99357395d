"""What goes wrong, said so that a person can act on it."""

from __future__ import annotations


class HiloreError(Exception):
    """Base of every error this package raises on purpose.

    The message names the thing, its value, what is accepted, and what to do.
    """


class OptionError(HiloreError):
    """An option that is unknown, unreadable or out of range."""


class PlanFileError(HiloreError):
    """A plan file that cannot be read, is damaged, or belongs to another graph."""


class InfeasibleError(HiloreError):
    """No placement fits the cap.

    Attributes:
        smallest_feasible_cap_bytes: the smallest cap a placement exists for; None if none does.
        holding: the units that hold that cap up, largest first.
    """

    def __init__(
        self, message: str, *, smallest_feasible_cap_bytes: int | None, holding: tuple[str, ...]
    ) -> None:
        super().__init__(message)
        self.smallest_feasible_cap_bytes = smallest_feasible_cap_bytes
        self.holding = holding


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


class SolverLimitError(HiloreError):
    """The time limit passed before any placement was found, or shown not to exist."""
