"""The rows of family (3): the bytes alive at a position stay under the cap.

They count at most the truth: a unit's bytes where it is surely alive, and where the refinement tells
when it is needed. Where it does not, a unit that is not read for long may seem to need no memory, for
a placement that needs it early may have made another of it by then. But that other needs memory in
its turn: ``heirs`` says how much of either is alive, and a second row counts it. The first is exact
where the refinement is, the second is strong from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hilore_planner.solvers.linear import Column, LinearModel, Term
from hilore_planner.solvers.problem import Bytes, PositionIndex
from hilore_planner.solvers.variables import (
    RECOMPUTE,
    STORE,
    Variables,
    held_bytes,
    inherited_share,
    rebuilds,
)


@dataclass(frozen=True, slots=True)
class Cap:
    """The right-hand side of the peak rows.

    Attributes:
        size_bytes: the cap, or 0 where ``column`` stands for it.
        unit_bytes: what 1 is in a row, to keep its coefficients moderate.
        column: the cap where it is minimised, in units of ``unit_bytes``.
    """

    size_bytes: Bytes
    unit_bytes: float
    column: Column | None = None


def add_peaks(model: LinearModel, variables: Variables, cap: Cap) -> None:
    """(3) fixed[k] + Σ kept bytes at k + Σ rebuilt bytes at k ≤ cap for every peak k."""
    units = [u for u, actions in enumerate(variables.actions) if actions]
    refinement = variables.refinement
    for k in refinement.peaks:
        fixed_bytes = variables.structure.problem.positions[k].fixed_bytes
        room_bytes = cap.size_bytes - refinement.guard_bytes - fixed_bytes
        is_refined = bool(refinement.breaks or refinement.tails)
        for name, heirs in {f"peak[{k},heirs]": True, f"peak[{k}]": False}.items():
            if heirs or is_refined:
                terms = [
                    (column, size / cap.unit_bytes)
                    for u in units
                    for column, size in alive_terms(variables, u, k, heirs=heirs)
                ]
                if cap.column is not None:
                    terms.append((cap.column, -1.0))
                model.row(name, terms, upper=room_bytes / cap.unit_bytes)


def alive_terms(variables: Variables, u: int, k: PositionIndex, *, heirs: bool) -> list[Term]:
    """Bytes of unit ``u`` alive at position ``k``, as columns with bytes; at most the truth.

    With ``heirs``, what is surely alive of these or the unit is counted as the unit's.
    """
    structure = variables.structure
    unit = structure.problem.units[u]
    kept = {a: column for a, column in variables.actions[u].items() if a != RECOMPUTE}
    if k < structure.problem.first_backward:
        return [
            (column, float(held_bytes(structure, u, action)[0]))
            for action, column in kept.items()
            if (k > unit.released_at if action == STORE else k >= unit.made_at)
        ]
    terms: list[Term] = []
    if RECOMPUTE in variables.actions[u]:
        rebuilt = variables.by_at_least(u, RECOMPUTE, k)
        terms += _held(variables, u, RECOMPUTE, k, rebuilt, unit.rebuilt_bytes)
    inherited = _inherited_bytes(variables, u, k) if heirs else 0
    for action in kept:
        counted = inherited * inherited_share(structure, u, action) if inherited else 0.0
        held = [size - counted for size in held_bytes(structure, u, action)]
        terms += _kept_terms(variables, u, action, k, held)
    return terms + (_inherited_terms(variables, u, k) if inherited else [])


def _inherited_bytes(variables: Variables, u: int, k: PositionIndex) -> Bytes:
    """What is alive at ``k`` if the unit is kept, and all it has heirs of are recomputed from it."""
    structure = variables.structure
    if k <= structure.surely_last[u]:
        return 0
    return sum(heir.size_bytes for heir in structure.heirs[u] if k <= heir.until)


def _inherited_terms(variables: Variables, u: int, k: PositionIndex) -> list[Term]:
    """Each heir's bytes where it is recomputed, none of them where the unit itself is."""
    terms: list[Term] = []
    for heir in variables.structure.heirs[u]:
        if k <= heir.until:
            counted = variables.heir.get((u, heir.units))
            own = variables.heir_terms(u, heir.units[0]) if counted is None else [(counted, 1.0)]
            terms += [(column, heir.size_bytes * weight) for column, weight in own]
            for v in heir.chain:
                rebuilt = variables.by_at_least(v, RECOMPUTE, k)
                # Counted as its own.
                terms += _held(variables, v, RECOMPUTE, k, rebuilt, -float(heir.size_bytes))
    return terms


def _kept_terms(
    variables: Variables, u: int, action: str, k: PositionIndex, sizes: Sequence[float]
) -> list[Term]:
    """Bytes under ``action``, which keeps the unit: of what is kept and of what is decoded from it.

    Where nothing is decoded there is only the first of ``sizes``.
    """
    structure = variables.structure
    column = variables.actions[u][action]
    kept_bytes = sizes[0]
    if not rebuilds(structure, u, action):
        return _held(variables, u, action, k, column, kept_bytes)
    rebuilt_bytes = sizes[1]
    rebuilt = variables.by_at_least(u, action, k)
    if k > structure.latest[u]:
        return _held(variables, u, action, k, rebuilt, rebuilt_bytes)
    decoded = variables.by_at_most(u, action, k - 1)
    if decoded is None:
        terms = _held(variables, u, action, k, rebuilt, rebuilt_bytes)
        return [(column, kept_bytes), *terms]
    # As long as it is surely needed, so much is alive whether it is decoded or not; no need of that
    # where a break decides it.
    is_open = k <= structure.surely_last[u] and variables.refinement.break_after(u, k - 1) != k - 1
    sure_bytes = min(kept_bytes, rebuilt_bytes) if is_open else 0.0
    terms = [(column, kept_bytes), (decoded, sure_bytes - kept_bytes)]
    return terms + _held(variables, u, action, k, rebuilt, rebuilt_bytes - sure_bytes)


def _held(
    variables: Variables,
    u: int,
    action: str,
    k: PositionIndex,
    column: Column | None,
    size_bytes: float,
) -> list[Term]:
    """``size_bytes`` under ``column`` up to the sure last need, under a tail after it.

    What is kept until a later position is held now; what is rebuilt by then may not be, so it takes
    a tail at ``k``.
    """
    if k > variables.structure.surely_last[u]:
        found = variables.refinement.tail_after(u, k)
        if found != k and rebuilds(variables.structure, u, action):
            found = None
        column = None if found is None else variables.tail.get((u, action, found))
    return [] if column is None else [(column, float(size_bytes))]
