"""The plan file: a problem, its solution, and where both come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from hilore_planner.solvers.problem import PlacementProblem, Solution

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class UnitSource:
    """Where a unit comes from, for people."""

    module: str
    """Path of the module that made it (``model.layers.3.mlp.gate_proj``)."""
    role: str
    """The layer-independent part of its name (``mlp.gate_proj``)."""
    op: str
    source: str
    """``file.py:line`` of the user's code."""
    shape: tuple[int, ...]
    dtype: str
    forced: str = ""
    """Why its action is not free to choose, if it is not."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Predicted or measured figures of one run of the update; None where not known."""

    peak_bytes: int | None = None
    time_ns: int | None = None
    gradient_error: float | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the plan was made from."""

    hilore: str
    torch: str
    device: str
    fingerprint: str
    """Of the graph's structure; decisions are keyed by unit names, so it holds no sizes."""
    costs: str
    """``roofline`` (estimated) or ``measured``."""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """One region's plan."""

    region: str
    problem: PlacementProblem
    solution: Solution
    sources: dict[str, UnitSource]
    provenance: Provenance
    predicted: Figures = Figures()
    measured: Figures = Figures()
    schema: int = SCHEMA_VERSION
