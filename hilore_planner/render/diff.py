"""Two plans side by side, and the units whose action differs."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hilore_planner.plan import UnitSource, unit_label
from hilore_planner.plan_diff import PlanDiff, UnitChange
from hilore_planner.render import words
from hilore_planner.render.fold import fold
from hilore_planner.render.table import Column, Line, table
from hilore_planner.sizes import format_bytes, format_ns
from hilore_planner.solvers.problem import Unit

_FIGURE_COLUMNS = (
    Column(""),
    Column("before", right=True),
    Column("after", right=True),
    Column("change", right=True),
)
_CHANGE_COLUMNS = (
    Column("before"),
    Column("after"),
    Column("kept", right=True),
    Column("value", give_way=1),
    Column("unit"),
    Column("op", give_way=2),
)


def diff(plans: PlanDiff, width: int) -> list[Text]:
    """What changed: figures, then units, with the same change in many layers as one."""
    lines = table(_FIGURE_COLUMNS, list(_figures(plans)), width)
    if not plans.changes:
        return [*lines, Text(), Text("  every unit has the same action")]
    lines += [Text(), Text(f"{words.count(len(plans.changes), 'unit')} changed", style="bold")]
    return [*lines, Text(), *table(_CHANGE_COLUMNS, list(_changes(plans)), width)]


def _figures(plans: PlanDiff) -> Iterator[Line]:
    before, after = plans.before, plans.after
    if before.region != after.region:
        yield Line(("region", before.region, after.region, ""))
    cap, cap_after = before.problem.memory_cap_bytes, after.problem.memory_cap_bytes
    yield Line(("cap", format_bytes(cap), format_bytes(cap_after), _bytes(cap_after - cap)))
    if not (before.solution.is_placed and after.solution.is_placed):
        yield Line(("status", before.solution.status, after.solution.status, ""))
        return
    for name, old, new in (
        ("predicted peak", before.predicted_peak_bytes, after.predicted_peak_bytes),
        ("saved", before.solution.saved_bytes, after.solution.saved_bytes),
    ):
        yield Line((name, format_bytes(old), format_bytes(new), _bytes(new - old)))
    old_ns, new_ns = before.solution.objective_ns, after.solution.objective_ns
    change = format_ns(new_ns - old_ns, sign=True)
    yield Line(("added time", format_ns(old_ns), format_ns(new_ns), change))
    old_error, new_error = before.predicted_gradient_error, after.predicted_gradient_error
    change = f"{new_error - old_error:+.3g}"
    yield Line(("gradient error", f"{old_error:.3g}", f"{new_error:.3g}", change))


def _bytes(change: int) -> str:
    return format_bytes(change, sign=True)


def _changes(plans: PlanDiff) -> Iterator[Line]:
    units = {unit.name: unit for plan in (plans.before, plans.after) for unit in plan.problem.units}
    sources = plans.before.sources | plans.after.sources
    rows = (
        (_cells(change, units[change.unit], sources[change.unit]), units[change.unit].layer)
        for change in plans.changes
    )
    for section in fold(rows):
        yield Line((section.heading,), "bold")
        for entry in section.rows:
            yield Line(entry.row)


def _cells(change: UnitChange, unit: Unit, source: UnitSource) -> tuple[str, ...]:
    return (
        words.action(change.before or "absent"),
        words.action(change.after or "absent"),
        _bytes(change.after_kept_bytes - change.before_kept_bytes),
        words.value(source.dtype, source.shape),
        unit_label(unit, source),
        words.op(source.op),
    )
