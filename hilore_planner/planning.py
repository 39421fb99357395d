"""Decide one region's plan; nothing here changes a graph."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from hilore_planner.attribution import PricedStep
from hilore_planner.composition import fixed_parts, vocabulary_size
from hilore_planner.correction import Aim
from hilore_planner.crowding import order_limit
from hilore_planner.errors import PlanFileError
from hilore_planner.head_plan import NO_HEAD, HeadPlan
from hilore_planner.least_peak import least_peak
from hilore_planner.options import Options
from hilore_planner.passes import compat
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.cost import Costs
from hilore_planner.passes.faults import find_faults
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import tensor
from hilore_planner.passes.risk import RiskModel
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit
from hilore_planner.plan import CHECKED, Figures, PlacementPlan, Provenance, UnitSource
from hilore_planner.posing import Posed, risk_model
from hilore_planner.region import Surroundings
from hilore_planner.sizes import format_bytes
from hilore_planner.solvers import refigured, replay, solve
from hilore_planner.solvers.problem import PlacementProblem, Solution

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedRegion:
    """A plan, the units of the graph it is for, and what it was priced with."""

    plan: PlacementPlan
    graph: RecoveryGraph
    costs: Costs
    steps: tuple[PricedStep, ...] = ()
    """What the rewritten graphs run; empty before they are."""

    def timed(self, *graphs: torch.fx.GraphModule) -> PlannedRegion:
        """With the time of the graphs that the plan led to: steps that changed are priced as they are now."""
        steps = self.costs.priced(*graphs)
        figures = replace(self.plan.predicted, time_ns=sum(step.ns for step in steps))
        return replace(self, plan=replace(self.plan, predicted=figures), steps=steps)


def plan_region(
    posed: Posed,
    *,
    region: str,
    aim: Aim,
    head: HeadPlan = NO_HEAD,
    loaded: PlacementPlan | None = None,
    must_fit: bool = True,
) -> PlannedRegion:
    """Solve a region's problem, or check that a loaded plan fits it.

    Without ``must_fit`` a plan for which nothing fits is returned all the same, and says so in its status.

    Raises:
        InfeasibleError: no placement fits the cap.
        PlanFileError: ``loaded`` belongs to another graph or does not fit.
    """
    joint, graph, around, options = posed.joint, posed.graph, posed.around, posed.options
    for what in posed.costs.unmeasured:
        log.warning("priced by roofline: %s", what)
    problem = replace(posed.problem, memory_cap_bytes=aim.cap_bytes or 1)
    problem = aim.correction.applied(problem)
    if loaded is None:
        problem, solution = _solved(problem, aim, options.solver_seconds)
    else:
        problem = _with_positions_of(loaded, problem)
        solution = _fitted(problem, loaded, joint.fingerprint)
    risks, vocabulary = risk_model(options, graph), vocabulary_size(joint)
    plan = PlacementPlan(
        region=region,
        problem=problem,
        solution=solution,
        sources={unit.name: _source(unit) for unit in graph.units.values()},
        provenance=_provenance(joint, around, options, posed.costs.kind),
        predicted=_predicted(posed, risks, solution),
        sequence_risks=risks.sequence_risks(solution),
        head=head,
        fixed_parts=fixed_parts(joint, graph.schedule, around) + aim.correction.parts(problem),
        vocabulary=vocabulary,
        advice=find_faults(joint, around.profile, vocabulary),
        ordered_above_bytes=_order_limit(problem, aim, loaded),
    )
    if must_fit:
        plan.require_feasible()
    return PlannedRegion(plan, graph, posed.costs)


def _predicted(posed: Posed, risks: RiskModel, solution: Solution) -> Figures:
    return Figures(
        peak_bytes=solution.peak_bytes,
        time_ns=posed.program_ns + solution.objective_ns,
        gradient_error=risks.gradient_error(solution),
    )


def _solved(
    problem: PlacementProblem, aim: Aim, solver_seconds: float
) -> tuple[PlacementProblem, Solution]:
    """The fastest placement under the cap, or of the least peak."""
    if aim.cap_bytes is None:
        return least_peak(problem, solver_seconds)
    return problem, solve(problem, time_limit_seconds=solver_seconds)


def _order_limit(problem: PlacementProblem, aim: Aim, loaded: PlacementPlan | None) -> int:
    if loaded is not None:
        return loaded.ordered_above_bytes
    return 0 if aim.is_strict else order_limit(problem)


def _provenance(
    joint: JointGraph, surroundings: Surroundings, options: Options, costs: str
) -> Provenance:
    return Provenance(
        hilore=_version(),
        torch=str(torch.__version__),
        device=surroundings.device_name,
        fingerprint=joint.fingerprint,
        costs=costs,
        options={
            "memory_cap": str(options.memory_cap),
            "codecs": ",".join(options.codecs),
            "head": str(options.head),
        },
    )


def _with_positions_of(loaded: PlacementPlan, problem: PlacementProblem) -> PlacementProblem:
    """The positions as compiling the loaded plan corrected them, where all sizes are the same."""
    if loaded.provenance.options.get(CHECKED) == "no":
        return problem

    def sizes(of: PlacementProblem) -> list[tuple[str, int, tuple[int, ...]]]:
        return [(unit.name, unit.kept_bytes, unit.read_at) for unit in of.units]

    positions = loaded.problem.positions
    is_same = len(positions) == len(problem.positions) and sizes(loaded.problem) == sizes(problem)
    return replace(problem, positions=positions) if is_same else problem


def _fitted(problem: PlacementProblem, loaded: PlacementPlan, graph_fingerprint: str) -> Solution:
    """The loaded placement with this graph's figures."""
    if loaded.provenance.fingerprint != graph_fingerprint:
        raise PlanFileError(
            f"the plan is for the graph {loaded.provenance.fingerprint} ({loaded.region}), but this region is "
            f"{graph_fingerprint}; delete the file, or pass on_mismatch='replan' to replace it"
        )
    figures = replay(problem, loaded.solution.placement)
    cap = problem.memory_cap_bytes
    if figures.peak_bytes > cap:
        raise PlanFileError(
            f"the plan needs {format_bytes(figures.peak_bytes)} here, more than the cap of {format_bytes(cap)}; "
            "raise memory_cap, or re-solve the plan (`hilore solve PLAN --memory-cap ...`)"
        )
    if figures.risk > problem.gradient_error**2 * (1 + 1e-9):
        raise PlanFileError(
            f"the plan adds a gradient error of up to {figures.risk**0.5:.3g} here, more than gradient_error "
            f"{problem.gradient_error:g}; raise it, or pass the plan's own risk profile as option exposure"
        )
    return refigured(loaded.solution, figures)


def _source(unit: RecoveryUnit) -> UnitSource:
    value = tensor(unit.maker)
    shape = tuple(compat.hint(size) for size in value.shape) if value is not None else ()
    origin = unit.origin
    return UnitSource(
        module=origin.module,
        role=origin.role,
        op=origin.op,
        source=origin.source,
        shape=shape,
        dtype=str(value.dtype).removeprefix("torch.") if value is not None else "",
        forced=unit.forced,
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("hilore-planner")
    except PackageNotFoundError:
        return "source"


def region_name(gm: torch.fx.GraphModule) -> str:
    """Name of a Dynamo graph for people: its compile id and first source line."""
    lines = (source_line(node) for node in gm.graph.nodes if node.op != "placeholder")
    first = next((line for line in lines if line), "")
    identity = str(gm.meta.get("dynamo_compile_id", "")) or "region"
    return f"{identity} {first}".strip()
