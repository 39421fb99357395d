"""From recovery units to a placement problem: bytes, times and risk as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import chain

from hilore_planner.passes import compat
from hilore_planner.passes.codecs import is_wide_float, offered_codec
from hilore_planner.passes.cost import Costs
from hilore_planner.passes.ops import tensor
from hilore_planner.passes.overwrite import fixed_bytes
from hilore_planner.passes.risk import FIRST_ORDER, RiskModel
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit
from hilore_planner.solvers.problem import CompressedForm, PlacementProblem, Position, Unit

_COARSER = 4.0
"""Times the risk, twice the error: from here on a codec is on a rung of its own."""


def build_problem(
    graph: RecoveryGraph,
    costs: Costs,
    *,
    codecs: Sequence[str],
    base_bytes: int,
    memory_cap_bytes: int,
    gradient_error: float,
    risks: RiskModel = FIRST_ORDER,
) -> PlacementProblem:
    """Everything the solver needs to know of one region."""
    schedule = graph.schedule
    fixed = fixed_bytes(graph.joint, schedule, base_bytes, graph.endings())
    positions = tuple(
        Position(schedule.label(step), fixed_bytes=size) for step, size in enumerate(fixed)
    )
    forms = {
        name: _forms(graph, costs, risks, unit, codecs) if _may_shrink(graph, unit) else ()
        for name, unit in graph.units.items()
    }
    useful = _useful(forms.values(), codecs, gradient_error)
    ladder = _ladder(forms.values(), useful)
    units = tuple(
        _unit(
            graph,
            costs,
            risks,
            unit,
            [form for form in forms[name] if form.codec in useful],
            ladder,
        )
        for name, unit in graph.units.items()
    )
    return PlacementProblem(
        units,
        positions,
        schedule.first_backward,
        memory_cap_bytes,
        gradient_error,
        ladder=tuple(chain.from_iterable(ladder)),
    )


def _useful(
    forms: Iterable[Sequence[CompressedForm]], codecs: Sequence[str], gradient_error: float
) -> tuple[str, ...]:
    """Codecs that some unit can afford; without a budget, which codecs are of use is left open."""
    budget = gradient_error**2 or float("inf")
    affordable = {form.codec for unit in forms for form in unit if form.risk <= budget}
    return tuple(codec for codec in codecs if codec in affordable)


def _ladder(forms: Iterable[Sequence[CompressedForm]], codecs: Sequence[str]) -> list[list[str]]:
    """Those that lose something, finest first, by what they risk in the middle of the units that they are offered to.

    Codecs that are about as coarse share a rung: each rung is a program to solve.
    """
    risks: dict[str, list[float]] = {codec: [] for codec in codecs}
    for form in (form for unit in forms for form in unit):
        if form.codec in risks and form.risk > 0:
            risks[form.codec].append(form.risk)
    middle = {codec: statistics.median(found) for codec, found in risks.items() if found}
    rungs: list[list[str]] = []
    for codec in sorted(middle, key=lambda codec: middle[codec]):
        if rungs and middle[codec] < _COARSER * middle[rungs[-1][0]]:
            rungs[-1].append(codec)
        else:
            rungs.append([codec])
    return rungs


def _unit(
    graph: RecoveryGraph,
    costs: Costs,
    risks: RiskModel,
    unit: RecoveryUnit,
    forms: Sequence[CompressedForm],
    ladder: Sequence[Sequence[str]],
) -> Unit:
    charges: list[float] = []
    codecs: list[str] = []
    for rung in ladder:
        codecs += rung
        charges += [risks.inexact_risk(unit, codecs)] * len(rung)
    return Unit(
        name=unit.name,
        kept_bytes=unit.kept_bytes,
        rebuilt_bytes=unit.rebuilt_bytes,
        recompute_ns=costs.recompute_ns(graph, unit),
        keep_ns=costs.keep_ns(graph, unit),
        parents=graph.parents(unit.name),
        made_at=unit.made_at,
        released_at=unit.released_at,
        read_at=unit.read_at,
        can_store=unit.can_store,
        can_recompute=unit.can_recompute,
        codecs=tuple(forms),
        inexact_risk=charges[-1] if charges else 0.0,
        finer_inexact_risks=tuple(charges[:-1]),
        kind=unit.origin.kind,
        layer=unit.origin.layer,
    )


def compressible(graph: RecoveryGraph, unit: RecoveryUnit) -> bool:
    """Whether a copy of less precision may be kept of a unit."""
    value = tensor(unit.maker)
    return value is not None and is_wide_float(value) and _may_shrink(graph, unit)


def _may_shrink(graph: RecoveryGraph, unit: RecoveryUnit) -> bool:
    return (
        unit.can_store
        and unit.forced not in ("small", "must be saved")
        and not _is_attention_statistic(graph, unit)
    )


def _is_attention_statistic(graph: RecoveryGraph, unit: RecoveryUnit) -> bool:
    """Outputs of attention other than the first (log-sum-exp, seeds) are exact or wrong."""
    if not compat.is_getitem(unit.maker):
        return False
    return bool(unit.maker.args[1] != 0)


def _forms(
    graph: RecoveryGraph,
    costs: Costs,
    risks: RiskModel,
    unit: RecoveryUnit,
    codecs: Sequence[str],
) -> list[CompressedForm]:
    value = tensor(unit.maker)
    if value is None:
        return []
    shape = [compat.hint(size) for size in value.shape]
    forms = []
    for name in codecs:
        codec = offered_codec(unit, name, value)
        if codec is None:
            continue
        kept = codec.kept_bytes(shape, value.dtype)
        if kept < unit.kept_bytes:
            forms.append(
                CompressedForm(
                    codec=name,
                    kept_bytes=kept,
                    encode_ns=costs.encode_ns(graph, unit, codec, kept),
                    decode_ns=costs.decode_ns(graph, unit, codec, kept),
                    risk=risks.risk(unit, name),
                )
            )
    return forms
