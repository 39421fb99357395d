"""The rows of the integer program: one function a family, numbered as in the design.

    (1) at hand     what backward reads is stored, compressed or recomputed
    (2) parents     what is recomputed finds its parents at hand
    (3) peak        the bytes alive at a position stay under the cap (in ``peaks``)
    (4) risk        the error added to the gradient stays in its budget
    (5) inexactness what is recomputed is exact only if its parents are
    (6) demand      what a recomputed reader needs early is rebuilt early
    (7) tails       what a recomputed reader needs late is held until then

(6) and (7) make (3) exact where memory depends on the placement; they are written out where the
refinement says.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hilore_planner.solvers.linear import Column, LinearModel, Term
from hilore_planner.solvers.problem import PositionIndex, compress_action
from hilore_planner.solvers.variables import (
    RECOMPUTE,
    Variables,
    lossy_actions,
    rebuilds,
)

_ROUNDING = 1e-9
"""Risks are sums of many small numbers."""


def add_at_hand(model: LinearModel, variables: Variables) -> None:
    """(1) store[u] + Σ_f compress[u,f] + recompute[u] = 1 if backward reads u, else ≤ 1."""
    for u, actions in enumerate(variables.actions):
        unit = variables.structure.problem.units[u]
        if variables.structure.needed(u):
            model.row(
                f"at_hand[{unit.name}]",
                _sum(actions.values()),
                lower=1.0 if unit.read_at else 0.0,
                upper=1.0,
            )


def add_parents(model: LinearModel, variables: Variables) -> None:
    """(2) recompute[u] ≤ store[p] + Σ_f compress[p,f] + recompute[p] for every parent p of u.

    Trivial where backward reads p. For interior p also recompute[p] ≤ Σ recompute[u] over its
    readers: what nothing needs is not recomputed (else it could pretend to need its own parents
    early).
    """
    units = variables.structure.problem.units
    for p, readers in enumerate(variables.structure.rebuilders):
        if units[p].read_at or not readers:
            continue
        rebuilt = [variables.actions[u][RECOMPUTE] for u in readers]
        for u, column in zip(readers, rebuilt, strict=True):
            terms = [(column, 1.0), *_sum(variables.actions[p].values(), -1.0)]
            model.row(f"parents[{units[u].name},{units[p].name}]", terms, upper=0.0)
        own = variables.actions[p].get(RECOMPUTE)
        if own is not None:
            terms = [(own, 1.0), *_sum(rebuilt, -1.0)]
            model.row(f"needed[{units[p].name}]", terms, upper=0.0)


def add_risk(model: LinearModel, variables: Variables) -> None:
    """(4) Σ ρ[u,f]·compress[u,f] + Σ ρ_inexact[u]·inexact[u] ≤ ε², divided by ε².

    Or, where all risks are one, by that, and rounded down: so many there may be.
    """
    structure = variables.structure
    if structure.risk_budget <= 0.0:
        return
    terms: list[Term] = []
    for u, actions in enumerate(variables.actions):
        if not actions:
            continue
        for form in structure.forms[u]:
            column = actions[compress_action(form.codec)]
            terms.append((column, form.risk / structure.risk_budget))
        if u in variables.inexact:
            risk = structure.problem.units[u].inexact_risk
            # Where it is over the budget its column is closed, and HiGHS refuses numbers far above 1.
            if risk <= structure.risk_budget:
                terms.append((variables.inexact[u], risk / structure.risk_budget))
    upper = 1.0 - variables.refinement.guard_risk
    risks = {risk for _, risk in terms if risk > 0.0}
    if len(risks) == 1:
        (risk,) = risks
        terms = [(column, each / risk) for column, each in terms]
        upper = math.floor(upper / risk * (1.0 + _ROUNDING))
    model.row("risk[]", terms, upper=upper)


def add_inexactness(model: LinearModel, variables: Variables) -> None:
    """(5) recompute[u] − inexact[u] ≤ what of p is exact, for every parent p of u.

    That is store[p] + Σ_f compress[p,f] + recompute[p] − inexact[p], f over the lossless forms.
    """
    structure = variables.structure
    units = structure.problem.units
    for u, column in variables.inexact.items():
        for p in structure.parents[u]:
            if structure.tainted[p]:
                terms = [(variables.actions[u][RECOMPUTE], 1.0), (column, -1.0)]
                terms += [(own, -weight) for own, weight in exact_terms(variables, p)]
                model.row(f"inexactness[{units[u].name},{units[p].name}]", terms, upper=0.0)


def exact_terms(variables: Variables, unit: int) -> list[Term]:
    """Columns that add up to 1 where the unit is at hand as forward made it, else to 0."""
    lossy = lossy_actions(variables.structure, unit)
    terms = [(c, 1.0) for action, c in variables.actions[unit].items() if action not in lossy]
    if unit in variables.inexact:
        terms.append((variables.inexact[unit], -1.0))
    return terms


def add_demand(model: LinearModel, variables: Variables) -> None:
    """(6) by[u,k] = 1 exactly if u is rebuilt and a recomputed reader is demanded by k.

    Σ_a by[u,a,k] + store[u] ≥ by[v,k] for every reader v;  Σ_a by[u,a,k] ≤ Σ_v by[v,k];
    by[u,a,k] ≤ a[u];  by[u,a,k] ≤ by[u,a,k'] for the next break k'.
    """
    structure = variables.structure
    for u, breaks in variables.refinement.breaks.items():
        name = structure.problem.units[u].name
        remade = [a for a in variables.actions[u] if rebuilds(structure, u, a)]
        kept = [variables.actions[u][a] for a in variables.actions[u] if a not in remade]
        if not remade:
            continue
        for rank, k in enumerate(breaks):
            own = [variables.by[u, action, k] for action in remade]
            at = {m: variables.refinement.breaks[m][rank] for m in variables.members(u)}
            least = _edges(variables, at, lambda v, k: (variables.surely(v, RECOMPUTE, k),))
            for (column,), edges in least.items():
                if column is not None:
                    terms = [*_sum([*own, *kept], edges.of_parent), (column, -edges.of_reader)]
                    model.row(f"demand[{name},{column},{k}]", terms, lower=-edges.missing)
            most = _edges(variables, at, lambda v, k: (variables.possibly(v, RECOMPUTE, k),))
            sources = [(c, -edges.of_reader_most) for (c,), edges in most.items() if c is not None]
            model.row(f"demand[{name},{k}]", [*_sum(own), *sources], upper=0.0)
            for action, column in zip(remade, own, strict=True):
                later = variables.by_at_most(u, action, k + 1)
                if later is not None:  # else it is before a fence, and both are closed
                    terms = [(column, 1.0), (later, -1.0)]
                    model.row(f"demand[{name},{action},{k}]", terms, upper=0.0)


def add_tails(model: LinearModel, variables: Variables) -> None:
    """(7) tail[a,u,k] = 1 if action a holds u and a recomputed reader v is demanded at k or later.

    a keeps u:     tail ≥ recompute[v] − by[v,k−1] − Σ_{b≠a} b[u]
    a rebuilds u:  tail ≥ by[u,a,k] + recompute[v] − by[v,k−1] − 1,
                   tail ≥ by[v,k] − by[v,k−1] − Σ_{b≠a} b[u]   (v is demanded at k itself)
    """
    structure = variables.structure
    for (u, action, k), column in variables.tail.items():
        others = [variables.actions[u][b] for b in variables.actions[u] if b != action]
        remade = rebuilds(structure, u, action)
        rank = variables.refinement.tails[u].index(k)
        at = {m: variables.refinement.tails[m][rank] for m in variables.members(u)}

        def needs(v: int, k: PositionIndex) -> tuple[Column | None, ...]:
            rebuilt = variables.surely(v, RECOMPUTE, structure.latest[v])
            earlier = variables.possibly(v, RECOMPUTE, k - 1)
            if structure.latest[v] < k or earlier == rebuilt:
                return ()
            return (rebuilt, earlier, variables.surely(v, RECOMPUTE, k))

        for found, edges in _edges(variables, at, needs).items():
            if not found:
                continue
            rebuilt, earlier, by_now = found
            count, weight, slack = edges.of_parent, edges.of_reader, edges.missing + edges.extra
            before = [] if earlier is None else [(earlier, weight)]
            now = by_now if remade else rebuilt
            name = f"{structure.problem.units[u].name},{action},{rebuilt},{k}"
            if now is not None:
                terms = [*_sum([column, *others], count), *before, (now, -weight)]
                model.row(f"tail[{name}]", terms, lower=-slack)
            own = variables.by_at_least(u, action, k) if remade else None
            if own is not None and rebuilt is not None:
                terms = [(column, count), *before, (own, -count), (rebuilt, -weight)]
                model.row(f"still[{name}]", terms, lower=-count * len(at) - slack)


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges between a class of units and a class of readers.

    Attributes:
        of_parent: the most that one of the units has.
        of_reader: what a reader usually has.
        of_reader_most: the most that a reader has.
        missing: what readers have less than the usual, all together.
        extra: what they have beyond it.
    """

    of_parent: float
    of_reader: float
    of_reader_most: float
    missing: float
    extra: float


_Key = tuple[Column | None, ...]


def _edges(
    variables: Variables,
    at: Mapping[int, PositionIndex],
    key: Callable[[int, PositionIndex], _Key],
) -> dict[_Key, _Edges]:
    """The edges between a class and the readers of its units, by what ``key`` says of a reader.

    Args:
        variables: the columns.
        at: a position for each unit of the class.
        key: columns of a reader that its unit, at that position, asks for.
    """
    structure = variables.structure
    if len(at) == 1:
        ((unit, k),) = at.items()
        if all(len(variables.members(v)) == 1 for v in structure.rebuilders[unit]):
            return {key(v, k): _Edges(1.0, 1.0, 1.0, 0.0, 0.0) for v in structure.rebuilders[unit]}
    parents: dict[_Key, Counter[int]] = defaultdict(Counter)
    readers: dict[_Key, Counter[int]] = defaultdict(Counter)
    for unit, k in at.items():
        for v in structure.rebuilders[unit]:
            found = key(v, k)
            parents[found][unit] += 1
            readers[found][v] += 1
    edges = {}
    for found, counts in readers.items():
        of_reader, missing, extra = usual(variables.members(next(iter(counts))), counts)
        most = float(max(counts.values()))
        of_parent = float(max(parents[found].values()))
        edges[found] = _Edges(of_parent, of_reader, most, missing, extra)
    return edges


def usual(members: Sequence[int], degrees: Mapping[int, int]) -> tuple[float, float, float]:
    """The usual degree of a member, how much members miss of it and how much they have beyond it."""
    most_common = Counter(degrees.get(u, 0) for u in members).most_common(1)[0][0]
    differences = [most_common - degrees.get(u, 0) for u in members]
    missing = sum(max(difference, 0) for difference in differences)
    extra = sum(max(-difference, 0) for difference in differences)
    return float(most_common), float(missing), float(extra)


def add_heirs(model: LinearModel, variables: Variables) -> None:
    """heir[u,V] ≥ recompute[v] − recompute[u] for v in V, less what a smaller copy of u has less of."""
    names = [unit.name for unit in variables.structure.problem.units]
    for u, heirs in enumerate(variables.structure.heirs):
        for heir in heirs:
            column = variables.heir.get((u, heir.units))
            if column is not None:
                for v in heir.units:
                    terms = [(own, -weight) for own, weight in variables.heir_terms(u, v)]
                    name = f"heir[{names[u]},{names[v]}]"
                    model.row(name, [(column, 1.0), *terms], lower=0.0)


def _sum(columns: Iterable[Column], sign: float = 1.0) -> list[Term]:
    return [(column, sign) for column in columns]
