"""Who holds the memory at the peak, and what would lower it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hilore_planner.explain import Explanation
from hilore_planner.plan import PlacementPlan
from hilore_planner.render import words
from hilore_planner.render.advice import filling, slowing
from hilore_planner.render.table import Column, Line, table
from hilore_planner.sizes import format_bytes, format_ns

_OWNER_COLUMNS = (
    Column("state"),
    Column("bytes", right=True),
    Column("share", right=True),
    Column("units", right=True),
    Column("what"),
)
_LEVER_COLUMNS = (
    Column("peak", right=True),
    Column("added time", right=True),
    Column("change"),
    Column("what"),
)
_ROWS = 12
"""Owners shown; the rest are summed. Also the changes shown; the rest do less."""
_STYLES = {"stored": "green", "compressed": "yellow", "rebuilt": "cyan"}


def explain(plan: PlacementPlan, explanation: Explanation, width: int) -> list[Text]:
    """The owners of the peak, largest first, then single changes that lower it, most first."""
    peak = format_bytes(explanation.peak_bytes)
    cap = format_bytes(plan.problem.memory_cap_bytes)
    where = words.position(plan.problem, explanation.position)
    lines = [Text(f"{peak} of the cap of {cap} at {where}", style="bold"), Text()]
    lines += table(_OWNER_COLUMNS, list(_owners(explanation)), width)
    lines += [Text(), Text("What would lower it, one change at a time", style="bold"), Text()]
    if explanation.levers:
        lines += table(_LEVER_COLUMNS, list(_levers(explanation)), width)
    else:
        fixed_bytes = max((position.fixed_bytes for position in plan.problem.positions), default=0)
        text = f"  nothing that is kept; {format_bytes(fixed_bytes)} are fixed whatever is decided"
        lines.append(Text(text))
    lines += filling(explanation.advice, explanation.peak_bytes, width)
    return lines + slowing(explanation.advice, width)


def _owners(explanation: Explanation) -> Iterator[Line]:
    whole = explanation.peak_bytes
    for owner in explanation.owners[:_ROWS]:
        what = owner.what or "weights, gradients, inputs, temporaries: alive whatever is decided"
        count = str(owner.count) if owner.count else ""
        share = words.share(owner.alive_bytes, whole)
        cells = (owner.state, format_bytes(owner.alive_bytes), share, count, what)
        yield Line(cells, _STYLES.get(owner.state, ""))
    rest = explanation.owners[_ROWS:]
    if rest:
        size = sum(owner.alive_bytes for owner in rest)
        count = str(sum(owner.count for owner in rest))
        yield Line(("others", format_bytes(size), words.share(size, whole), count, ""), "dim")


def _levers(explanation: Explanation) -> Iterator[Line]:
    for lever in explanation.levers[:_ROWS]:
        change = f"{words.action(lever.before)} -> {words.action(lever.after)}"
        cells = (
            format_bytes(lever.peak_change_bytes, sign=True),
            format_ns(lever.time_change_ns, sign=True),
            change,
            f"{lever.what} ({words.count(lever.count, 'unit')})",
        )
        yield Line(cells)
