"""Plans as plain records, for ``--json``; fields that are not known are null."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hilore_planner.advice import Advice
from hilore_planner.explain import Explanation
from hilore_planner.plan import PlacementPlan
from hilore_planner.plan_diff import NOT_AT_HAND, PlanDiff, kept_bytes

Record = dict[str, Any]


def plan_record(plan: PlacementPlan) -> Record:
    """The figures of a plan and its units, one by one."""
    return figures(plan) | {
        "advice": _advice_rows(plan.advice),
        "units": [_unit_record(plan, index) for index in _indices(plan)],
    }


def _advice_rows(advice: Sequence[Advice]) -> list[Record]:
    return [
        {
            "what": found.what,
            "source": found.source,
            "count": found.count,
            "bytes": found.size_bytes,
            "ns": found.time_ns,
            "remedy": found.remedy,
        }
        for found in advice
    ]


def figures(plan: PlacementPlan) -> Record:
    """The figures of a plan; sizes in bytes, times in nanoseconds, errors relative."""
    solution = plan.solution
    solved = solution.is_placed
    return {
        "region": plan.region,
        "status": solution.status,
        "memory_cap_bytes": plan.problem.memory_cap_bytes,
        "saved_bytes": solution.saved_bytes if solved else None,
        "predicted_peak_bytes": plan.predicted_peak_bytes if solved else None,
        "measured_peak_bytes": plan.measured.peak_bytes,
        "predicted_time_ns": plan.predicted.time_ns,
        "measured_time_ns": plan.measured.time_ns,
        "predicted_gradient_error": plan.predicted_gradient_error if solved else None,
        "measured_gradient_error": plan.measured.gradient_error,
        "gradient_error_budget": plan.problem.gradient_error,
        "objective_ns": solution.objective_ns if solved else None,
        "bound_ns": solution.bound_ns if solved else None,
        "gap": solution.gap if solved else None,
        "solver": solution.engine,
        "solver_seconds": solution.solver_seconds,
        "smallest_feasible_cap_bytes": solution.smallest_feasible_cap_bytes,
        "head": dataclasses.asdict(plan.head),
        "provenance": dataclasses.asdict(plan.provenance),
    }


def _indices(plan: PlacementPlan) -> range:
    return range(len(plan.problem.units))


def _unit_record(plan: PlacementPlan, index: int) -> Record:
    unit = plan.problem.units[index]
    action = plan.solution.placement.get(unit.name, NOT_AT_HAND)
    source = plan.sources[unit.name]
    return {
        "unit": unit.name,
        "action": action,
        "bytes": unit.kept_bytes,
        "kept_bytes": kept_bytes(unit, action),
        "layer": unit.layer,
        **dataclasses.asdict(source),
    }


def diff_record(diff: PlanDiff) -> Record:
    """Both plans' figures and the units whose action differs."""
    return {
        "before": figures(diff.before),
        "after": figures(diff.after),
        "units": [dataclasses.asdict(change) for change in diff.changes],
    }


def sweep_record(plans: tuple[PlacementPlan, ...]) -> Record:
    """The figures of each cap's plan."""
    dropped = ("region", "provenance")
    rows = [{k: v for k, v in figures(plan).items() if k not in dropped} for plan in plans]
    return {"rows": rows}


def explanation_record(plan: PlacementPlan, explanation: Explanation) -> Record:
    """The figures of a plan, the owners of its peak, and what lowers it."""
    return figures(plan) | explanation_fields(explanation)


def explanation_fields(explanation: Explanation) -> Record:
    """An explanation by itself."""
    advice = {"advice": _advice_rows(explanation.advice)}
    return dataclasses.asdict(explanation) | advice
