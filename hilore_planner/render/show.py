"""A plan in full: figures, units, totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from hilore_planner.plan import PlacementPlan, unit_label
from hilore_planner.plan_diff import NOT_AT_HAND, kept_bytes
from hilore_planner.render import words
from hilore_planner.render.advice import slowing
from hilore_planner.render.fold import Section, fold
from hilore_planner.render.header import header
from hilore_planner.render.table import Column, Line, table
from hilore_planner.sizes import format_bytes
from hilore_planner.solvers.problem import Unit

_MINOR_BYTES = 64 * 1024
_UNIT_COLUMNS = (
    Column("action"),
    Column("bytes", right=True),
    Column("value", give_way=1),
    Column("unit"),
    Column("op", give_way=2),
    Column("source", give_way=3),
)
_TOTAL_COLUMNS = (
    Column("total"),
    Column("units", right=True),
    Column("bytes", right=True),
    Column(""),
)


@dataclass(frozen=True, slots=True)
class UnitRow:
    """What units share that are shown as one."""

    action: str
    unit_bytes: int
    value: str
    unit: str
    op: str
    source: str
    forced: str


def show(plan: PlacementPlan, width: int, *, everything: bool = False) -> list[Text]:
    """A plan: its figures, its units with the same ones of many layers as one, and totals.

    Args:
        plan: the plan.
        width: characters to a line.
        everything: list small units that are stored in any case, too.
    """
    lines = header(plan, width)
    if not plan.solution.is_placed:
        return lines
    listed = [unit for unit in plan.problem.units if everything or not _is_minor(plan, unit)]
    sections = fold(_unit_rows(plan, listed))
    lines += [Text(), *table(_UNIT_COLUMNS, list(_unit_lines(sections)), width)]
    lines += [Text(), *table(_TOTAL_COLUMNS, list(_total_lines(plan)), width)]
    notes = [Text(f"  {note}", style="dim") for note in _notes(plan, listed)]
    return lines + ([Text(), *notes] if notes else []) + slowing(plan.advice, width)


def _is_minor(plan: PlacementPlan, unit: Unit) -> bool:
    """Stored whatever the cap, and too small to matter."""
    stored = plan.solution.placement.get(unit.name) == "store"
    return stored and not unit.can_recompute and unit.kept_bytes < _MINOR_BYTES


def _notes(plan: PlacementPlan, listed: Sequence[Unit]) -> Iterator[str]:
    minor = [unit for unit in plan.problem.units if _is_minor(plan, unit)]
    if len(listed) < len(plan.problem.units):
        size = format_bytes(sum(unit.kept_bytes for unit in minor))
        yield (
            f"{words.count(len(minor), 'unit')} under {format_bytes(_MINOR_BYTES)} stored in any "
            f"case, {size} together; --all lists them"
        )
    reasons = {plan.sources[unit.name].forced for unit in listed} - {""}
    if reasons:
        yield f"* not free to choose: {'; '.join(sorted(reasons))}"


def _unit_rows(plan: PlacementPlan, units: Sequence[Unit]) -> Iterator[tuple[UnitRow, int | None]]:
    """A row for each unit at hand: stored and rebuilt ones with the value's own size."""
    for unit in units:
        action = plan.solution.placement.get(unit.name)
        if action is None:
            continue
        source = plan.sources[unit.name]
        row = UnitRow(
            action=action,
            unit_bytes=kept_bytes(unit, action) or unit.kept_bytes,
            value=words.value(source.dtype, source.shape),
            unit=unit_label(unit, source),
            op=words.op(source.op),
            source=source.source,
            forced=source.forced,
        )
        yield row, unit.layer


def _unit_lines(sections: Sequence[Section[UnitRow]]) -> Iterator[Line]:
    for section in sections:
        yield Line((section.heading,), "bold")
        for entry in section.rows:
            row = entry.row
            several = entry.count // max(len(entry.layers), 1)
            cells = (
                words.action(row.action) + ("*" if row.forced else ""),
                format_bytes(row.unit_bytes),
                row.value,
                row.unit + (f" ({several} each)" if several > 1 else ""),
                row.op,
                row.source,
            )
            yield Line(cells, words.style(row.action))


def _total_lines(plan: PlacementPlan) -> Iterator[Line]:
    """Units and bytes of each action, the ones that keep most first."""
    counts: dict[str, int] = {}
    kept: dict[str, int] = {}
    values: dict[str, int] = {}
    for unit in plan.problem.units:
        action = plan.solution.placement.get(unit.name, NOT_AT_HAND)
        counts[action] = counts.get(action, 0) + 1
        kept[action] = kept.get(action, 0) + kept_bytes(unit, action)
        values[action] = values.get(action, 0) + unit.kept_bytes
    for action in sorted(counts, key=lambda action: (-kept[action], action == NOT_AT_HAND)):
        remark = "kept"
        if action.startswith("compress"):
            remark = f"kept of {format_bytes(values[action])}"
        elif action == "recompute":
            remark = "made again in backward"
        elif action == NOT_AT_HAND:
            remark = "read by nothing in backward"
        size = format_bytes(kept[action] or values[action])
        yield Line((words.action(action), str(counts[action]), size, remark), words.style(action))
