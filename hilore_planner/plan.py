"""The plan file: a problem, its solution, and where both come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hilore_planner import plan_check, plan_diff, plan_file
from hilore_planner.plan_diff import PlanDiff
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
    """One region's plan: everything needed to read it, compare it and solve it for another cap."""

    region: str
    problem: PlacementProblem
    solution: Solution
    sources: dict[str, UnitSource]
    """By unit name, one for each unit of the problem."""
    provenance: Provenance
    predicted: Figures = Figures()
    measured: Figures = Figures()
    schema: int = SCHEMA_VERSION

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads and checks a plan's file.

        Raises:
            PlanFileError: it cannot be read, is no plan, has another schema, a field is wrong, or
                the placement does not do what the file says of it.
        """
        plan = plan_file.read(Path(path), cls, SCHEMA_VERSION)
        plan_check.check(plan, origin=f"plan {path}")
        return plan

    def save(self, path: str | Path) -> None:
        """Checks the plan and writes its file, whole or not at all.

        Raises:
            PlanFileError: the plan contradicts itself, or the file cannot be written.
        """
        plan_check.check(self, origin=f"plan for {path}")
        plan_file.write(Path(path), self)

    def diff(self, other: PlacementPlan) -> PlanDiff:
        """What changes from this plan to ``other``, unit by unit."""
        return plan_diff.diff(self, other)

    def summary(self) -> str:
        """The figures of the plan as text: cap, peak, saved bytes, time, error, solver."""
        from hilore_planner.render.header import header

        return "\n".join(line.plain for line in header(self, width=100))

    @property
    def predicted_peak_bytes(self) -> int:
        """The sharpest prediction there is: of the compiled graphs, else of the program."""
        known = self.predicted.peak_bytes
        return self.solution.peak_bytes if known is None else known

    @property
    def predicted_gradient_error(self) -> float:
        """The sharpest prediction there is: of the whole plan, else the root of summed risks."""
        known = self.predicted.gradient_error
        return math.sqrt(self.solution.risk) if known is None else known
