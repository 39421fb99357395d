"""Pose the problem of planning a region: all about it that no cap changes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hilore_planner.calibration.model import CalibratedRisk
from hilore_planner.head_decision import HeadTrial
from hilore_planner.options import Options
from hilore_planner.passes.cost import Costs
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.problem import build_problem
from hilore_planner.passes.risk import FIRST_ORDER, RiskModel
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, build_units
from hilore_planner.peak.dry_run import Workspaces
from hilore_planner.region import Surroundings
from hilore_planner.solvers.problem import PlacementProblem
from hilore_planner.transients import with_transients

_NO_CAP = 2**62


@dataclass(frozen=True, slots=True)
class Posed:
    """All about a region that no cap changes.

    Attributes:
        graph: its units.
        problem: of placing them; its cap is of no account.
        program_ns: time of the whole update when nothing is recomputed.
    """

    joint: JointGraph
    graph: RecoveryGraph
    problem: PlacementProblem
    program_ns: int
    costs: Costs
    around: Surroundings
    options: Options


@dataclass(frozen=True, slots=True)
class RegionProblems:
    """Builds the problems of one region's graphs; what was built to try a head need not be built again."""

    around: Surroundings
    options: Options
    costs: Costs
    _built: deque[tuple[RecoveryGraph, PlacementProblem]] = field(
        default_factory=lambda: deque(maxlen=2), repr=False
    )

    def of(self, joint: JointGraph) -> tuple[RecoveryGraph, PlacementProblem]:
        """The units of a graph, and the problem of placing them, with all that can be known of costs."""
        for graph, problem in self._built:
            if graph.joint is joint:
                return graph, problem
        self._built.append(self._build(joint))
        return self._built[-1]

    def _build(self, joint: JointGraph) -> tuple[RecoveryGraph, PlacementProblem]:
        graph = build_units(joint, build_schedule(joint))

        def problem() -> PlacementProblem:
            return build_problem(
                graph,
                self.costs,
                codecs=self.options.codecs,
                base_bytes=self.around.base_bytes,
                memory_cap_bytes=_NO_CAP,
                gradient_error=self.options.gradient_error,
                risks=risk_model(self.options, graph),
            )

        found = problem()
        self.costs.program_ns(graph)  # asks for what no unit does
        return graph, problem() if self.costs.settle() else found

    def head_trial(self, cap_bytes: int) -> HeadTrial:
        """What deciding about the region's head needs."""
        return HeadTrial(
            self.of, self.costs, self.options.solver_seconds, cap_bytes, self.around.base_bytes
        )


def risk_model(options: Options, graph: RecoveryGraph) -> RiskModel:
    """The calibrated one that the options name, or the bound that needs none."""
    return FIRST_ORDER if options.exposure is None else CalibratedRisk(options.exposure, graph)


def pose(
    joint: JointGraph, problems: RegionProblems, workspaces: Workspaces | None = None
) -> Posed:
    """A region's problem; without ``workspaces`` what operations take while they run is not counted."""
    graph, problem = problems.of(joint)
    if workspaces is not None:
        problem = with_transients(problem, graph.schedule, workspaces)
    costs = problems.costs
    return Posed(
        joint, graph, problem, costs.program_ns(graph), costs, problems.around, problems.options
    )
