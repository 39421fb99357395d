"""Plans for many caps, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from hilore_planner.plan import PlacementPlan
from hilore_planner.render.table import Column, Line, table
from hilore_planner.sizes import format_bytes, format_ns

_COLUMNS = (
    Column("cap", right=True),
    Column("status"),
    Column("predicted peak", right=True),
    Column("saved", right=True),
    Column("added time", right=True),
    Column("gradient error", right=True, give_way=2),
    Column("gap", right=True, give_way=1),
    Column("solver", right=True, give_way=3),
)
_STYLES = {"optimal": "green", "feasible": "yellow", "infeasible": "red", "undecided": "red"}


def sweep(plans: Sequence[PlacementPlan], width: int) -> list[Text]:
    """One line per cap, and the smallest cap that anything fits where one of them is too small."""
    lines = table(_COLUMNS, list(_lines(plans)), width)
    least_bytes = [
        plan.solution.smallest_feasible_cap_bytes
        for plan in plans
        if plan.solution.smallest_feasible_cap_bytes is not None
    ]
    if least_bytes:
        text = f"  smallest cap that something fits: {format_bytes(min(least_bytes))}"
        lines += [Text(), Text(text)]
    return lines


def _lines(plans: Sequence[PlacementPlan]) -> Iterator[Line]:
    for plan in plans:
        solution = plan.solution
        figures = ("-",) * 5
        if solution.is_placed:
            figures = (
                format_bytes(plan.predicted_peak_bytes),
                format_bytes(solution.saved_bytes),
                format_ns(solution.objective_ns),
                f"{plan.predicted_gradient_error:.3g}",
                f"{solution.gap:.2%}",
            )
        cap = format_bytes(plan.problem.memory_cap_bytes)
        seconds = f"{solution.solver_seconds:.2f} s"
        yield Line((cap, solution.status, *figures, seconds), _STYLES[solution.status])
