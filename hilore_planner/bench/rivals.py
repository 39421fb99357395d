"""Small updates that are not planned, and plans that save no more bytes than they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from hilore_planner.bench.runner import Row
from hilore_planner.bench.small_models import SmallUpdate, small_update
from hilore_planner.bench.trial import Trial, try_update
from hilore_planner.passes import compat
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import refigured, replay

BUDGETS = (0.0, 0.5, 1.0)
"""Of torch's memory budget: a share of what it would save by itself."""


def rivals(name: str) -> Iterator[tuple[str, Trial]]:
    """An architecture's update checkpointed, without and with compilation, and under torch's budgets."""
    checkpointed = small_update(name, is_checkpointed=True)
    yield "eager-gc", tried(checkpointed, checkpointed.loss)
    yield "gc", tried(checkpointed, _compiled(checkpointed))
    plain = small_update(name)
    try:
        for share in BUDGETS:
            compat.set_activation_memory_budget(share)
            yield f"budget {share:g}", tried(plain, _compiled(plain))
    finally:
        compat.set_activation_memory_budget(1.0)


def with_saved_bytes(
    plan: PlacementPlan, saved_bytes: int, *, peak_bytes: int, base_bytes: int
) -> PlacementPlan | None:
    """The fastest plan that saves no more than so many bytes; None where there is none.

    The cap is ``peak_bytes``, or the plan's own where that is too little. At the end of the forward, so much is taken
    to be held, beside the ``base_bytes`` that are held throughout, that only what is to be saved fits.
    """
    problem = plan.problem
    last = problem.first_backward - 1
    fixed = [position.fixed_bytes for position in problem.positions]
    outputs_bytes = min(fixed[last], fixed[last + 1]) - base_bytes
    # What the last step itself reads is its own there, and would not count as saved.
    units = tuple(replace(u, released_at=min(u.released_at, last - 1)) for u in problem.units)
    for cap_bytes in (peak_bytes, problem.memory_cap_bytes):
        positions = list(problem.positions)
        held_bytes = max(fixed[last], cap_bytes - saved_bytes + outputs_bytes)
        positions[last] = replace(positions[last], fixed_bytes=held_bytes)
        limited = replace(plan, problem=replace(problem, units=units, positions=tuple(positions)))
        found = limited.solve(memory_cap=cap_bytes, must_fit=False).solution
        if found.is_placed:
            solution = refigured(found, replay(problem, found.placement))
            return replace(plan, solution=solution, ordered_above_bytes=0)
    return None


def tried(update: SmallUpdate, loss: Any) -> Trial:
    """Run and measure an update."""
    return try_update(loss, update.batch, update.model, repeats=3)


def measured_fields(trial: Trial) -> Row:
    """A trial's figures as fields of a row."""
    return {
        "measured_peak_bytes": trial.peak_bytes,
        "measured_saved_bytes": trial.saved_bytes,
        "time_ms": round(trial.time_ms, 3),
    }


def _compiled(update: SmallUpdate) -> Any:
    torch._dynamo.reset()
    loss: Any = torch.compile(update.loss, dynamic=False)
    return loss
