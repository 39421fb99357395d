"""What ``hilore plan`` prints: a plan without a device, who holds its peak, and what other caps cost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hilore_planner.explain import explain
from hilore_planner.render import records
from hilore_planner.render.explain import explain as render_explanation
from hilore_planner.render.header import header
from hilore_planner.render.sweep import sweep

if TYPE_CHECKING:
    from hilore_planner.offline.study import Study


def study(found: Study, width: int) -> list[Text]:
    """Figures, owners of the peak, advice, frontier."""
    lines = header(found.plan, width)
    lines += [
        Text(),
        Text(f"  {_numbers(found.parameters)} parameters, {_numbers(found.trained)} trained"),
    ]
    if not found.frontier:
        return lines
    plan = found.explained
    lines += [Text(), *render_explanation(plan, explain(plan), width)]
    title = "From the smallest cap that something fits to everything stored"
    return [*lines, Text(), Text(title, style="bold"), Text(), *sweep(found.frontier, width)]


def _numbers(count: int) -> str:
    for size, word in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if count >= size:
            return f"{count / size:.{2 if size == 1e9 else 1}f}{word}"
    return str(count)


def study_record(found: Study) -> records.Record:
    """The plan's record; the workload, the owners of the peak, and the frontier's figures under ``rows``."""
    explained = records.explanation_fields(explain(found.explained)) if found.frontier else {}
    record: dict[str, Any] = records.plan_record(found.plan)
    return record | {
        "workload": dataclasses.asdict(found.workload),
        "parameters": found.parameters,
        "trained_parameters": found.trained,
        "smallest_feasible_cap_bytes": found.smallest_cap_bytes,
        **explained,
        **records.sweep_record(found.frontier),
    }
