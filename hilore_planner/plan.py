"""The plan file: a problem, its solution, and where both come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from hilore_planner import margins, plan_check, plan_diff, plan_file
from hilore_planner.advice import Advice
from hilore_planner.crowding import order_limit
from hilore_planner.errors import OptionError
from hilore_planner.head_plan import NO_HEAD, HeadPlan
from hilore_planner.options import Options
from hilore_planner.plan_diff import PlanDiff
from hilore_planner.refusal import refusal
from hilore_planner.sizes import parse_bytes
from hilore_planner.solvers import solve, sweep
from hilore_planner.solvers.problem import PlacementProblem, Solution, Unit

SCHEMA_VERSION = 1

CHECKED = "checked"
"""Key of a plan's provenance: ``no`` where its peak was not compared with compiled code."""


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


def unit_label(unit: Unit, source: UnitSource) -> str:
    """What to call a unit where its layer is said elsewhere; its full name outside layers."""
    if unit.layer is None:
        return unit.name
    return "(layer)" if source.role == source.module else source.role


@dataclass(frozen=True, slots=True)
class FixedPart:
    """Part of the positions' fixed bytes, from position ``first`` to ``last``; the rest of them is not known."""

    what: str
    """``weights``, ``inputs``, ``earlier gradients``, ``optimizer state``, ``others``; of the program: ``outputs``,
    ``incoming gradients``, ``gradients``, ``forward values``, ``backward values``."""
    size_bytes: int
    first: int
    last: int
    source: str = ""
    """Op and line that make it, of the program's."""
    shape: tuple[int, ...] = ()


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
    head: HeadPlan = NO_HEAD
    fixed_parts: tuple[FixedPart, ...] = ()
    sequence_risks: tuple[float, ...] = ()
    """By place of a sequence in the batch: squared relative gradient error that hardly any batch exceeds whose exposure
    is all there. One entry where all places are alike; empty without a risk profile."""
    vocabulary: int = 0
    """Rows of the token embedding; 0 where there is none."""
    advice: tuple[Advice, ...] = ()
    """What slows the update whatever is planned, the costliest first."""
    ordered_above_bytes: int = 0
    """Steps where more than this is alive keep their place in the compiled code; elsewhere fusion may move them."""
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

    def solve(
        self,
        *,
        memory_cap: int | str | None = None,
        gradient_error: float | None = None,
        solver_seconds: float = 10.0,
        warm_start: Mapping[str, str] | None = None,
        must_fit: bool = True,
    ) -> Self:
        """The plan of the same program for another cap or another gradient error.

        Args:
            memory_cap: bytes, or text such as ``"20GiB"``; None keeps this plan's.
            gradient_error: relative error allowed in the gradient; None keeps this plan's.
            solver_seconds: time limit.
            warm_start: a placement to start from, such as an error's ``witness``; None: this plan's.
            must_fit: raise where nothing fits; else the plan says so in its status, and can be solved for the
                smallest cap that something fits.

        Raises:
            OptionError: an unreadable cap or error.
            PlacementError: a warm start that does not fit the problem.
            InfeasibleError: nothing fits the cap; it has the smallest cap that something fits.
            SolverLimitError: the time limit passed before it was known whether something does.
        """
        asked = self._at(memory_cap, gradient_error)
        solution = solve(
            asked.problem,
            time_limit_seconds=solver_seconds,
            warm_start=self._start if warm_start is None else warm_start,
        )
        plan = asked._with(solution)
        if must_fit:
            plan.require_feasible()
        return plan

    def sweep(
        self,
        caps: Sequence[int | str],
        *,
        gradient_error: float | None = None,
        solver_seconds: float = 10.0,
    ) -> tuple[Self, ...]:
        """One plan per cap, in the order given; where nothing fits, its status says so.

        More memory never costs time: a cap's plan is at least as fast as that of any smaller cap.

        Args:
            caps: bytes, or text such as ``"20GiB"``.
            gradient_error: relative error allowed in the gradient; None keeps this plan's.
            solver_seconds: time limit for each cap.

        Raises:
            OptionError: an unreadable cap or error.
        """
        sizes = [parse_bytes(cap, name="memory_cap") for cap in caps]
        asked = self._at(max(sizes, default=None), gradient_error)
        solutions = sweep(
            asked.problem,
            sizes,
            time_limit_seconds=solver_seconds,
            warm_start=self._start,
        )
        return tuple(
            asked._under(size)._with(solution)
            for size, solution in zip(sizes, solutions, strict=True)
        )

    def require_feasible(self) -> None:
        """Does nothing if the plan has a placement.

        Raises:
            InfeasibleError: nothing fits the plan's cap.
            SolverLimitError: nothing was found that does, and none ruled out.
        """
        if not self.solution.is_placed:
            raise refusal(self.region, self.problem.memory_cap_bytes, self.solution)

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

    @property
    def _start(self) -> Mapping[str, str] | None:
        """The placement that another solve starts from."""
        return self.solution.placement or self.solution.witness or None

    def _at(self, memory_cap: int | str | None, gradient_error: float | None) -> Self:
        """This plan's problem under another cap or error, with no solution of its own yet."""
        if memory_cap is not None:
            cap_bytes = parse_bytes(memory_cap, name="memory_cap")
            return margins.for_cap(self, cap_bytes)._under(memory_cap)._at(None, gradient_error)
        problem, options = self.problem, dict(self.provenance.options)
        if gradient_error is not None:
            error = Options.parse({"gradient_error": gradient_error}).gradient_error
            if error and not any(unit.codecs for unit in problem.units):
                raise OptionError(
                    f"gradient_error is {error:g}, but no unit of this plan can be compressed; "
                    "make the plan anew with gradient_error above 0"
                )
            problem = replace(problem, gradient_error=error)
            options["gradient_error"] = f"{error:g}"
        return self._changed(problem, options)

    def _under(self, memory_cap: int | str) -> Self:
        """The same under another cap, with the margin it has."""
        cap_bytes = parse_bytes(memory_cap, name="memory_cap")
        problem = replace(self.problem, memory_cap_bytes=cap_bytes)
        return self._changed(problem, self.provenance.options | {"memory_cap": str(memory_cap)})

    def _changed(self, problem: PlacementProblem, options: dict[str, str]) -> Self:
        return replace(
            self,
            problem=problem,
            provenance=replace(self.provenance, options=options),
            ordered_above_bytes=self.ordered_above_bytes and order_limit(problem),
        )

    def _with(self, solution: Solution) -> Self:
        """This plan with another solution; what was predicted or measured of the old one goes."""
        time_ns = self.predicted.time_ns
        if time_ns is not None:
            time_ns += solution.objective_ns - self.solution.objective_ns
        known = solution.is_placed and self.solution.is_placed
        predicted = Figures(time_ns=time_ns if known else None)
        return replace(
            self,
            solution=solution,
            predicted=predicted,
            measured=Figures(),
            sequence_risks=(),
        )
