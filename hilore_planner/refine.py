"""Costs of a plan as a profile of its compiled update corrects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hilore_planner.attribution import Difference, by_kind, kind_of_op
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import refigured, replay
from hilore_planner.solvers.problem import CompressedForm, Unit

_OTHER = "fused"
"""Kind of all that is neither a product nor attention, and of copies."""


def refined(plan: PlacementPlan, differences: Sequence[Difference]) -> PlacementPlan:
    """The same plan with times as they were measured, ready to be solved again.

    Every unit's times are multiplied by what its kind (product, attention, fused work) took more than predicted, over
    the whole update. Single kernels are too few to be told from noise, and most units that might be rebuilt were not.
    """
    factors = _factors(differences)
    units = tuple(
        _unit(unit, _factor(factors, plan.sources[unit.name].op), factors)
        for unit in plan.problem.units
    )
    problem = replace(plan.problem, units=units)
    solution = refigured(plan.solution, replay(problem, plan.solution.placement))
    measured_ns = sum(found.measured_ns for found in differences)
    return replace(
        plan,
        problem=problem,
        solution=solution,
        predicted=replace(plan.predicted, time_ns=measured_ns),
    )


def _factors(differences: Sequence[Difference]) -> dict[str, float]:
    return {
        kind: measured_ns / predicted_ns
        for kind, (predicted_ns, measured_ns) in by_kind(differences).items()
        if predicted_ns and measured_ns
    }


def _factor(factors: Mapping[str, float], op: str) -> float:
    kind = kind_of_op(op.partition("[")[0])
    return factors.get(_OTHER if kind == "other" else kind, 1.0)


def _unit(unit: Unit, factor: float, factors: Mapping[str, float]) -> Unit:
    copied = factors.get(_OTHER, 1.0)
    return replace(
        unit,
        recompute_ns=round(unit.recompute_ns * factor),
        keep_ns=round(unit.keep_ns * copied),
        codecs=tuple(_form(form, copied) for form in unit.codecs),
    )


def _form(form: CompressedForm, factor: float) -> CompressedForm:
    return replace(
        form,
        encode_ns=round(form.encode_ns * factor),
        decode_ns=round(form.decode_ns * factor),
    )
