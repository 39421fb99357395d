"""The columns of the integer program.

    store[u], compress[u,f], recompute[u]   the unit's action                            binary
    inexact[u]                              recomputed from something inexact            binary
    by[u,a,k]                               a is its action, rebuilds or decodes it,
                                            and it is demanded at k or before            binary
    tail[u,a,k]                             a holds it at k, past its sure last need     [0, 1]
    heir[u,V]                               one of V is recomputed from u, which is kept;
                                            less for a smaller copy                      [0, 1]

``by`` and ``tail`` exist where the refinement has a break or a tail. Between breaks demand is only
bounded: ``by_at_least`` and ``by_at_most`` give the column that bounds it from below and above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hilore_planner.solvers.linear import Column, LinearModel, Term
from hilore_planner.solvers.problem import Bytes, PositionIndex, compress_action
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.structure import Structure

STORE, RECOMPUTE = "store", "recompute"


@dataclass(frozen=True, slots=True)
class Variables:
    """Columns by what they decide."""

    structure: Structure
    refinement: Refinement
    actions: tuple[dict[str, Column], ...]
    """By unit: the column of each action open to it."""
    inexact: dict[int, Column]
    by: dict[tuple[int, str, PositionIndex], Column]
    """By (unit, action, break)."""
    tail: dict[tuple[int, str, PositionIndex], Column]
    heir: dict[tuple[int, tuple[int, ...]], Column]
    """By unit and heirs, where the unit has more than one."""
    classes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Where the program is folded: by unit, all units of its class; the first has their columns."""

    def recomputed(self, unit: int, of: int, weight: float) -> Term:
        """``weight`` if ``unit``, which is recomputed from ``of``, is; of a class: for each of its units."""
        members = self.members(unit)
        share = len(self.members(of)) / len(members)
        return (self.actions[members[0]][RECOMPUTE], weight * share)

    def heir_terms(self, unit: int, heir: int) -> list[Term]:
        """What ``heir`` is at least for one of the unit's heirs: exactly that, where it has but one."""
        terms = [self.recomputed(heir, unit, 1.0)]
        for action, column in self.actions[unit].items():
            counted = 0.0 if action == RECOMPUTE else inherited_share(self.structure, unit, action)
            if counted < 1.0:
                terms.append((column, counted - 1.0))
        return terms

    def members(self, unit: int) -> tuple[int, ...]:
        """The units whose columns the unit's are."""
        return self.classes.get(unit, (unit,))

    def surely(self, unit: int, action: str, position: PositionIndex) -> Column | None:
        """``by_at_least`` of any unit, as the column of its class."""
        first = self.members(unit)[0]
        if position >= self.structure.latest[unit]:
            return self.actions[first].get(action)
        found = self.refinement.break_before(unit, position)
        return None if found is None else self._class_break(unit, action, found)

    def possibly(self, unit: int, action: str, position: PositionIndex) -> Column | None:
        """``by_at_most`` of any unit, as the column of its class."""
        if position < self.structure.earliest[unit]:
            return None
        first = self.members(unit)[0]
        found = self.refinement.break_after(unit, position)
        if found is None or position >= self.structure.latest[unit]:
            return self.actions[first].get(action)
        return self._class_break(unit, action, found)

    def _class_break(self, unit: int, action: str, position: PositionIndex) -> Column | None:
        first = self.members(unit)[0]
        rank = self.refinement.breaks[unit].index(position)
        return self.by.get((first, action, self.refinement.breaks[first][rank]))

    def by_at_least(self, unit: int, action: str, position: PositionIndex) -> Column | None:
        """At most the truth of "under ``action`` and demanded by ``position``"; None: zero."""
        if position >= self.structure.latest[unit]:
            return self.actions[unit].get(action)
        found = self.refinement.break_before(unit, position)
        return None if found is None else self.by.get((unit, action, found))

    def by_at_most(self, unit: int, action: str, position: PositionIndex) -> Column | None:
        """At least the truth of "under ``action`` and demanded by ``position``"; None: zero."""
        if position < self.structure.earliest[unit]:
            return None
        found = self.refinement.break_after(unit, position)
        if found is None or position >= self.structure.latest[unit]:
            return self.actions[unit].get(action)
        return self.by.get((unit, action, found))


def add_variables(model: LinearModel, structure: Structure, refinement: Refinement) -> Variables:
    """Add every column to ``model``; costs are the objective's."""
    actions = tuple(add_actions(model, structure, u) for u in range(len(structure.parents)))
    inexact = {u: add_inexact(model, structure, u) for u in inexactly_rebuilt(structure, actions)}
    by = add_breaks(model, structure, refinement, actions, {})
    tail = add_tails(model, structure, refinement, actions, {})
    heir = add_heirs(model, structure, actions)
    return Variables(structure, refinement, actions, inexact, by, tail, heir)


def add_breaks(
    model: LinearModel,
    structure: Structure,
    refinement: Refinement,
    actions: Sequence[dict[str, Column]],
    counts: Mapping[int, int],
) -> dict[tuple[int, str, PositionIndex], Column]:
    """``by[u,a,k]`` at every break; ``counts`` says how many units are decided with one."""
    by: dict[tuple[int, str, PositionIndex], Column] = {}
    for u, positions in refinement.breaks.items():
        name = structure.problem.units[u].name
        for action in actions[u]:
            if rebuilds(structure, u, action):
                for k in positions:
                    upper = 0.0 if k < structure.earliest[u] else counts.get(u, 1)
                    by[u, action, k] = model.column(f"by[{name},{action},{k}]", upper=upper)
    return by


def add_tails(
    model: LinearModel,
    structure: Structure,
    refinement: Refinement,
    actions: Sequence[dict[str, Column]],
    counts: Mapping[int, int],
) -> dict[tuple[int, str, PositionIndex], Column]:
    """``tail[a,u,k]`` at every tail; ``counts`` as for breaks."""
    tail: dict[tuple[int, str, PositionIndex], Column] = {}
    for u, positions in refinement.tails.items():
        name = structure.problem.units[u].name
        for action in actions[u]:
            for k in positions:
                tail[u, action, k] = model.column(
                    f"tail[{name},{action},{k}]", upper=counts.get(u, 1), integer=False
                )
    return tail


def add_heirs(
    model: LinearModel, structure: Structure, actions: Sequence[dict[str, Column]]
) -> dict[tuple[int, tuple[int, ...]], Column]:
    """``heir[u,V]`` for the heirs of every unit that has more than one."""
    columns: dict[tuple[int, tuple[int, ...]], Column] = {}
    for u, heirs in enumerate(structure.heirs):
        if actions[u] and sum(len(heir.units) for heir in heirs) > 1:
            for heir in heirs:
                name = f"heir[{structure.problem.units[u].name},{heir.units}]"
                columns[u, heir.units] = model.column(name, upper=math.inf, integer=False)
    return columns


def inherited_share(structure: Structure, unit: int, action: str) -> float:
    """How much of its heirs' bytes is alive in the unit's place at the least, if ``action`` keeps it."""
    heirs_bytes = sum(heir.size_bytes for heir in structure.heirs[unit])
    least_bytes = min(held_bytes(structure, unit, action))
    return min(least_bytes / heirs_bytes, 1.0) if heirs_bytes else 1.0


def held_bytes(structure: Structure, unit: int, action: str) -> list[Bytes]:
    """What is held under ``action``, which keeps the unit: a copy, and then, if any, what is decoded."""
    if action == STORE:
        return [structure.problem.units[unit].kept_bytes]
    copy = next(f.kept_bytes for f in structure.forms[unit] if compress_action(f.codec) == action)
    rebuilt_bytes = structure.problem.units[unit].rebuilt_bytes
    return [copy, rebuilt_bytes] if rebuilt_bytes else [copy]


def rebuilds(structure: Structure, unit: int, action: str) -> bool:
    """Whether the action makes the unit's bytes in backward, so that memory depends on when."""
    if action == RECOMPUTE:
        return True
    return action != STORE and structure.problem.units[unit].rebuilt_bytes > 0


def lossy_actions(structure: Structure, unit: int) -> list[str]:
    """The actions that keep the unit, and not exactly."""
    return [compress_action(form.codec) for form in structure.forms[unit] if form.risk > 0]


def add_actions(
    model: LinearModel, structure: Structure, u: int, *, count: int = 1
) -> dict[str, Column]:
    """A column for each action open to the unit; ``count`` units like it are decided together."""
    unit = structure.problem.units[u]
    if not structure.needed(u):
        return {}
    actions: dict[str, Column] = {}
    if unit.can_store:
        actions[STORE] = model.column(f"store[{unit.name}]", upper=count)
    if unit.can_recompute:
        actions[RECOMPUTE] = model.column(f"recompute[{unit.name}]", upper=count)
    for form in structure.forms[u]:
        name = f"compress[{unit.name},{form.codec}]"
        actions[compress_action(form.codec)] = model.column(name, upper=count)
    return actions


def inexactly_rebuilt(structure: Structure, actions: Sequence[dict[str, Column]]) -> list[int]:
    """Units that may be recomputed from something inexact."""
    return [
        u
        for u, parents in enumerate(structure.parents)
        if RECOMPUTE in actions[u] and any(structure.tainted[p] for p in parents)
    ]


def add_inexact(model: LinearModel, structure: Structure, u: int, *, count: int = 1) -> Column:
    """``inexact[u]``; closed where that alone would be over the risk budget."""
    unit = structure.problem.units[u]
    upper = 0.0 if unit.inexact_risk > structure.risk_budget else float(count)
    return model.column(f"inexact[{unit.name}]", upper=upper)
