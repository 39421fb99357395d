"""Regions captured once and compiled under many caps, with or without kernels."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hilore_planner.backend import hilore
from hilore_planner.correction import Aim
from hilore_planner.costs import costs_for
from hilore_planner.errors import InfeasibleError, RegionError
from hilore_planner.head_plan import HeadPlan
from hilore_planner.options import Options
from hilore_planner.partitioner import CutSettings, HilorePartitioner
from hilore_planner.passes import compat
from hilore_planner.passes.graph import JointGraph
from hilore_planner.peak import (
    StepPeak,
    Wrapper,
    capture_wrappers,
    measured_peak_bytes,
    step_peak,
)
from hilore_planner.peak.workspace import MeasuredWorkspaces
from hilore_planner.plan import PlacementPlan
from hilore_planner.planning import PlannedRegion, plan_region
from hilore_planner.posing import RegionProblems, pose
from hilore_planner.region import surroundings
from hilore_planner.sizes import parse_bytes
from hilore_planner.solvers import solve

PLENTY = "8GiB"


@dataclass(frozen=True, slots=True)
class Planned:
    """A region's plan under a cap, and how many times it was compiled to get there."""

    plan: PlacementPlan
    rounds: int
    compiled: Callable[..., Any]

    @property
    def added_ns(self) -> int:
        return self.plan.solution.objective_ns

    @property
    def peak_bytes(self) -> int:
        return self.plan.predicted_peak_bytes

    @property
    def cap_bytes(self) -> int:
        return self.plan.problem.memory_cap_bytes


@dataclass(frozen=True, slots=True)
class Region:
    """What Dynamo hands to a backend: a graph and its inputs."""

    gm: torch.fx.GraphModule
    inputs: Sequence[Any]

    @property
    def base_bytes(self) -> int:
        """Held around the update whatever is decided."""
        return surroundings(self.inputs).base_bytes

    def planned(self, cap: int | str, **options: Any) -> Planned:
        """Compile under a cap.

        Raises:
            HiloreError: what the compiled function would raise.
        """
        with tempfile.TemporaryDirectory() as folder, counted_rounds() as rounds:
            path = Path(folder) / "plan.json"
            given = {"memory_cap": cap, "reserved": 0, "plan": path, **options}
            with torch.enable_grad():
                compiled = hilore(self.gm, self.inputs, options=given)
            hilore.reset()  # type: ignore[attr-defined]
            if not path.exists():
                compiled(*self.inputs)
                raise AssertionError("the region was not planned")
            return Planned(PlacementPlan.load(path), len(rounds), compiled)

    def least_bytes(self, **options: Any) -> int:
        """The smallest cap that is kept: what the error names where any cap is too small."""
        refused = self.tried(self.base_bytes + 1, **options)
        assert isinstance(refused, InfeasibleError)
        assert refused.smallest_feasible_cap_bytes is not None
        return refused.smallest_feasible_cap_bytes

    def tried(self, cap: int | str, **options: Any) -> Planned | InfeasibleError:
        """Compile under a cap; the error where nothing fits."""
        try:
            return self.planned(cap, **options)
        except InfeasibleError as error:
            return error

    def measured_bytes(self, planned: Planned) -> int:
        """Peak of a warm update on the CPU, what is held around it included; gradients are dropped at its end."""

        def update() -> None:
            with torch.enable_grad():
                outputs = planned.compiled(*self.inputs)
                outputs[0].backward()
            for value in self.inputs:
                if isinstance(value, torch.Tensor):
                    value.grad = None

        update()
        return self.base_bytes + measured_peak_bytes(update, "cpu").peak_bytes

    def unplanned_peak(self) -> StepPeak:
        """The dry run of what stock Inductor makes of the region."""
        with capture_wrappers() as wrappers, torch.enable_grad():
            compiled = compat.compile_graph(self.gm, self.inputs, {})
        peak = dry_peak(wrappers)
        del compiled  # its wrappers go with it
        return peak

    def peak(self, plan: PlacementPlan, **options: Any) -> StepPeak:
        """The dry run of a given plan's compiled code."""
        with tempfile.TemporaryDirectory() as folder, capture_wrappers() as wrappers:
            path = Path(folder) / "plan.json"
            plan.save(path)
            given = {"memory_cap": plan.problem.memory_cap_bytes, "reserved": 0, "plan": path}
            with torch.enable_grad():
                compiled = hilore(self.gm, self.inputs, options=given | options)
            hilore.reset()  # type: ignore[attr-defined]
        peak = dry_peak(wrappers)
        del compiled  # its wrappers go with it
        return peak

    def estimated(self, **options: Any) -> Bounds:
        """The smallest cap with a placement and the peak where memory is plentiful, before compiling."""
        found: list[PlacementPlan] = []

        def plan(joint: JointGraph, head: HeadPlan) -> PlannedRegion:
            around, parsed = surroundings(self.inputs), Options.parse(options)
            cap_bytes = parse_bytes(PLENTY)
            aim = Aim(cap_bytes)
            problems = RegionProblems(around, parsed, costs_for(parsed, around))
            posed = pose(joint, problems, MeasuredWorkspaces("cpu"))
            planned = plan_region(posed, region="", aim=aim, head=head)
            found.append(planned.plan)
            raise RegionError("seen enough")

        partitioner = HilorePartitioner("estimate", plan, CutSettings())
        patches = {"custom_partitioner_fn": partitioner}
        with torch.enable_grad(), contextlib.suppress(Exception):
            compat.compile_graph(self.gm, self.inputs, patches)
        (roomy,) = found
        tight = solve(replace(roomy.problem, memory_cap_bytes=1))
        assert tight.smallest_feasible_cap_bytes is not None
        return Bounds(tight.smallest_feasible_cap_bytes, roomy.solution.peak_bytes)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between them the cap decides."""

    least_bytes: int
    most_bytes: int

    def at(self, share: float) -> int:
        """The cap at a share of the way from the least to the most."""
        return self.least_bytes + round(share * (self.most_bytes - self.least_bytes))


def dry_peak(wrappers: Sequence[Wrapper]) -> StepPeak:
    """The dry run of one update on the CPU."""
    (forward,) = (wrapper for wrapper in wrappers if not wrapper.is_backward)
    (backward,) = (wrapper for wrapper in wrappers if wrapper.is_backward)
    return step_peak(
        forward,
        backward,
        forward.example_inputs,
        device="cpu",
        workspaces=MeasuredWorkspaces("cpu"),
    )


def capture(function: Callable[..., Any], *inputs: Any) -> Region:
    """The one region of a function; it is run once, uncompiled."""
    found: list[Region] = []

    def keep(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(Region(gm, list(example_inputs)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, dynamic=False)(*inputs)
    (region,) = found
    return region


class _Rounds(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def counted_rounds() -> Iterator[list[str]]:
    """One line for each time a region is compiled."""
    logger, handler = logging.getLogger("hilore_planner.compiling"), _Rounds()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
