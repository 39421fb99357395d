"""What was found, as a solution."""

from __future__ import annotations

import time

from hilore_planner.solvers.candidate import Candidate
from hilore_planner.solvers.problem import Nanoseconds, Solution
from hilore_planner.solvers.search import Found, closed
from hilore_planner.solvers.structure import Structure


def placed(
    engine: str, best: Candidate, bound_ns: Nanoseconds, relative_gap: float, started: float
) -> Solution:
    """The solution with a placement.

    Args:
        engine: what found it.
        best: the placement.
        bound_ns: a lower bound on the time of any.
        relative_gap: within this of the bound it is optimal.
        started: ``time.monotonic()`` when the search began.
    """
    objective_ns = best.replay.time_ns
    bound_ns = min(bound_ns, objective_ns)
    return Solution(
        status="optimal" if closed(objective_ns, bound_ns, relative_gap) else "feasible",
        engine=engine,
        placement=best.placement,
        objective_ns=objective_ns,
        bound_ns=bound_ns,
        gap=(objective_ns - bound_ns) / max(objective_ns, 1),
        solver_seconds=time.monotonic() - started,
        peak_bytes=best.replay.peak_bytes,
        peak_position=best.replay.peak_position,
        saved_bytes=best.replay.saved_bytes,
        risk=best.replay.risk,
    )


def unplaced(
    engine: str, structure: Structure, floor: Found, started: float, *, is_proven: bool
) -> Solution:
    """The solution without one.

    Args:
        engine: what searched.
        structure: the problem's structure.
        floor: the least peak.
        started: ``time.monotonic()`` when the search began.
        is_proven: that there is none.
    """
    least_bytes = None if floor.best is None else floor.best.replay.peak_bytes
    return Solution(
        status="infeasible" if is_proven else "undecided",
        engine=engine,
        placement={},
        objective_ns=0,
        bound_ns=0,
        gap=0.0 if least_bytes is None else (least_bytes - floor.bound) / max(least_bytes, 1),
        solver_seconds=time.monotonic() - started,
        peak_bytes=0,
        peak_position=0,
        saved_bytes=0,
        risk=0.0,
        smallest_feasible_cap_bytes=least_bytes,
        holding=_holding(structure, floor.best),
        witness={} if floor.best is None else floor.best.placement,
    )


def _holding(structure: Structure, best: Candidate | None) -> tuple[str, ...]:
    """What is alive at the least peak; where no cap would do, what cannot be at hand."""
    if best is not None:
        return tuple(name for name, _ in best.replay.owners(best.replay.peak_position))
    return tuple(
        unit.name
        for unit, forms in zip(structure.problem.units, structure.forms, strict=True)
        if unit.read_at and not (unit.can_store or unit.can_recompute or forms)
    )
