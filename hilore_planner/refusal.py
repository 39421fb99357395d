"""The error for a cap that no placement was found for."""

from __future__ import annotations

from hilore_planner.errors import InfeasibleError, NoPlacementError, SolverLimitError
from hilore_planner.sizes import format_bytes
from hilore_planner.solvers.problem import Bytes, Solution

_NAMED = 3
"""Units that the message names."""


def refusal(region: str, cap_bytes: Bytes, solution: Solution) -> NoPlacementError:
    """``InfeasibleError`` where nothing fits, ``SolverLimitError`` where nothing was found that does."""
    is_proven = solution.status == "infeasible"
    error = InfeasibleError if is_proven else SolverLimitError
    message = _infeasible if is_proven else _undecided
    return error(
        message(region, format_bytes(cap_bytes), solution),
        smallest_feasible_cap_bytes=solution.smallest_feasible_cap_bytes,
        holding=solution.holding,
        witness=solution.witness,
    )


def _infeasible(region: str, cap: str, solution: Solution) -> str:
    least_bytes = solution.smallest_feasible_cap_bytes
    if least_bytes is None:
        return f"no placement of {region!r} exists under any memory_cap"
    named = ", ".join(solution.holding[:_NAMED])
    held = f", held up most by {named}" if named else ""
    return (
        f"nothing fits memory_cap {cap} in {region!r}: the smallest feasible one is {least_bytes} bytes "
        f"({format_bytes(least_bytes)}){held}; raise memory_cap, or shrink the microbatch"
    )


def _undecided(region: str, cap: str, solution: Solution) -> str:
    least_bytes = solution.smallest_feasible_cap_bytes
    least = "" if least_bytes is None else f" (one that something fits is {least_bytes} bytes)"
    return (
        f"memory_cap {cap} in {region!r}: after {solution.solver_seconds:.1f} s nothing was found that fits, and "
        f"nothing shows that none can; raise memory_cap{least} or solver_seconds"
    )
