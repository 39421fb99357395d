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

from collections.abc import Iterable

from hilore_planner.solvers.linear import Column, LinearModel, Term
from hilore_planner.solvers.variables import (
    RECOMPUTE,
    Variables,
    compress_action,
    lossy_actions,
    rebuilds,
)


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
    """(4) Σ ρ[u,f]·compress[u,f] + Σ ρ_inexact[u]·inexact[u] ≤ ε², divided by ε²."""
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
    model.row("risk[]", terms, upper=1.0 - variables.refinement.guard_risk)


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
        for k in breaks:
            own = [variables.by[u, action, k] for action in remade]
            sources: list[Column] = []
            for v in structure.rebuilders[u]:
                least = variables.by_at_least(v, RECOMPUTE, k)
                if least is not None:
                    reader = structure.problem.units[v].name
                    terms = [*_sum(own), *_sum(kept), (least, -1.0)]
                    model.row(f"demand[{name},{reader},{k}]", terms, lower=0.0)
                most = variables.by_at_most(v, RECOMPUTE, k)
                if most is not None:
                    sources.append(most)
            model.row(f"demand[{name},{k}]", [*_sum(own), *_sum(sources, -1.0)], upper=0.0)
            for action, column in zip(remade, own, strict=True):
                later = variables.by_at_most(u, action, k + 1)
                assert later is not None  # a break is at or after the earliest demand
                terms = [(column, 1.0), (later, -1.0)]
                model.row(f"demand[{name},{action},{k}]", terms, upper=0.0)


def add_tails(model: LinearModel, variables: Variables) -> None:
    """(7) tail[a,u,k] = 1 if action a holds u and a recomputed reader v is demanded at k or later.

    a keeps u:     tail ≥ recompute[v] − by[v,k−1] − Σ_{b≠a} b[u]
    a rebuilds u:  tail ≥ by[u,a,k] + recompute[v] − by[v,k−1] − 1,
                   tail ≥ by[v,k] − by[v,k−1] − Σ_{b≠a} b[u]   (v is demanded at k itself)
    """
    structure = variables.structure
    units = structure.problem.units
    for (u, action, k), column in variables.tail.items():
        others = [variables.actions[u][b] for b in variables.actions[u] if b != action]
        remade = rebuilds(structure, u, action)
        for v in structure.rebuilders[u]:
            rebuilt = variables.actions[v][RECOMPUTE]
            earlier = variables.by_at_most(v, RECOMPUTE, k - 1)
            if structure.latest[v] < k or earlier == rebuilt:
                continue
            name = f"{units[u].name},{action},{units[v].name},{k}"
            before = [] if earlier is None else [earlier]
            now = variables.by_at_least(v, RECOMPUTE, k) if remade else rebuilt
            if now is not None:
                terms = [*_sum([column, *others, *before]), (now, -1.0)]
                model.row(f"tail[{name}]", terms, lower=0.0)
            own = variables.by_at_least(u, action, k) if remade else None
            if own is not None:
                terms = [*_sum([column, *before]), (own, -1.0), (rebuilt, -1.0)]
                model.row(f"still[{name}]", terms, lower=-1.0)


def _sum(columns: Iterable[Column], sign: float = 1.0) -> list[Term]:
    return [(column, sign) for column in columns]
