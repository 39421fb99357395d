"""The program folded over classes of equal units: a bound, and placements that mostly attain it.

Units that differ only in their layer could change places in the program. Each class of them becomes
one unit whose actions are counts: how many are stored, how many recomputed. What is left has the
size of a layer and solves in milliseconds. Every placement gives counts that satisfy the folded
rows, so the folded optimum is a bound; and since counts are whole, it is far above the LP
relaxation's where layers are traded against a cap. Dealt out to the layers again (``deal``), the
counts are mostly those of a placement that takes the same time.

Classes come from colour refinement (Grohe et al., Dimension Reduction via Colour Refinement, 2014),
blind to the rows (5) that chain layer to layer: of those only what holds for their sum is kept. But
layers at the ends, which are chained to other kinds, are classes of their own.
Breaks and tails, where the program is refined, lie alike in equal layers: those stay one class. Rows
(6) and (7) are summed over a class's edges, like (5).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hilore_planner.solvers import constraints
from hilore_planner.solvers.constraints import exact_terms, usual
from hilore_planner.solvers.linear import LinearModel, Term
from hilore_planner.solvers.problem import PositionIndex
from hilore_planner.solvers.program import Choices
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import (
    RECOMPUTE,
    Variables,
    add_actions,
    add_breaks,
    add_heirs,
    add_inexact,
    add_tails,
    inexactly_rebuilt,
)

Members = Mapping[int, tuple[int, ...]]
"""Units of each class, ascending, by its first."""

Looks = Mapping[int, int]
"""By unit that can be needed."""

Edge = tuple[int, int]
"""A unit and one of its parents."""


@dataclass(frozen=True, slots=True)
class Folded:
    """The folded program: the columns of a class are its first unit's, and are counts."""

    choices: Choices
    members: Members


def fold(structure: Structure, alike: Looks, refinement: Refinement) -> Folded:
    """The choices folded; units that have breaks or tails stay by themselves.

    Args:
        structure: the problem's structure.
        alike: its ``looks``.
        refinement: where the peak rows are, and what of them is written out.
    """
    members = _classes(structure, alike, refinement)
    model = LinearModel()
    none: list[dict[str, int]] = [{} for _ in structure.parents]
    for first, units in members.items():
        none[first] = add_actions(model, structure, first, count=len(units))
    actions = tuple(none)
    inexact = {
        u: add_inexact(model, structure, u, count=len(members[u]))
        for u in inexactly_rebuilt(structure, actions)
    }
    classes = {u: units for units in members.values() for u in units}
    counts = {first: len(units) for first, units in members.items()}
    by = add_breaks(model, structure, refinement, actions, counts)
    tail = add_tails(model, structure, refinement, actions, counts)
    heir = add_heirs(model, structure, actions)
    variables = Variables(structure, refinement, actions, inexact, by, tail, heir, classes)
    _add_at_hand(model, variables, members)
    first_of = {u: first for first, units in members.items() for u in units}
    _add_parents(model, variables, members, first_of)
    names = [unit.name for unit in structure.problem.units]
    groups = {u: f"class of {names[first]}" for u, first in first_of.items()}
    _add_inexactness(model, variables, members, groups)
    # Over all layers together, so that less is lost where one class's layers end.
    kinds = {u: f"kind of {_kind(structure, u)}" for u in first_of}
    _add_inexactness(model, variables, members, kinds)
    constraints.add_demand(model, variables)
    constraints.add_tails(model, variables)
    constraints.add_heirs(model, variables)
    return Folded(Choices(model, variables), members)


def looks(structure: Structure) -> Looks:
    """A number for every unit, the same for those that all rows but (3) take for equal by themselves."""
    needed = [u for u in range(len(structure.parents)) if structure.needed(u)]
    return _numbered({u: _looks_of_one(structure, u) for u in needed})


def _classes(structure: Structure, alike: Looks, refinement: Refinement) -> Members:
    """Classes of the units that can be needed."""
    split = bisect_left(refinement.peaks, structure.problem.first_backward)
    forward, backward = refinement.peaks[:split], refinement.peaks[split:]
    colours = _numbered(
        {
            u: (look, _when_refined(refinement, u), _when(structure, u, forward, backward))
            for u, look in alike.items()
        }
    )
    edges = [(u, p, _between(structure, refinement, u, p)) for u, p in _interior_edges(structure)]
    known = 0
    while len(set(colours.values())) > known:
        known = len(set(colours.values()))
        around: dict[int, list[tuple[bool, int, Hashable]]] = defaultdict(list)
        for u, p, between in edges:
            around[u].append((True, colours[p], between))
            around[p].append((False, colours[u], between))
        colours = _numbered(
            {u: (colour, tuple(sorted(around[u]))) for u, colour in colours.items()}
        )
    groups: dict[int, list[int]] = defaultdict(list)
    for u, colour in colours.items():
        groups[colour].append(u)
    return {group[0]: tuple(group) for group in groups.values()}


def _looks_of_one(structure: Structure, u: int) -> Hashable:
    """All that the rows say of a unit by itself, and which kinds it is inexact with."""
    unit = structure.problem.units[u]
    sources = [_kind(structure, p) for p in structure.parents[u] if structure.tainted[p]]
    readers = structure.rebuilders[u] if structure.tainted[u] else ()
    return (
        _kind(structure, u),
        tuple(sorted(sources)),
        tuple(sorted(_kind(structure, v) for v in readers)),
        bool(unit.read_at),
        (unit.can_store, unit.can_recompute, structure.tainted[u]),
        (unit.kept_bytes, unit.rebuilt_bytes, unit.keep_ns, unit.recompute_ns, unit.inexact_risk),
        tuple(sorted(heir.size_bytes for heir in structure.heirs[u])),
        id(structure.forms[u]),  # shared by units that have the same
    )


def _when(
    structure: Structure,
    u: int,
    forward: Sequence[PositionIndex],
    backward: Sequence[PositionIndex],
) -> Hashable:
    """Where the positions that decide which bytes of a unit are alive lie among the peaks."""
    unit = structure.problem.units[u]
    return (
        bisect_left(forward, unit.made_at),
        bisect_right(forward, unit.released_at),
        bisect_right(backward, structure.earliest[u]),
        bisect_left(backward, structure.latest[u]),
        bisect_right(backward, structure.latest[u]),
        bisect_right(backward, structure.surely_last[u]),
        *sorted(bisect_right(backward, heir.until) for heir in structure.heirs[u]),
    )


def _when_refined(refinement: Refinement, u: int) -> Hashable:
    """Where a unit's breaks and tails lie among the peaks."""
    return tuple(
        tuple(
            side(refinement.peaks, mark) for mark in marks for side in (bisect_left, bisect_right)
        )
        for marks in (refinement.breaks.get(u, ()), refinement.tails.get(u, ()))
    )


def _between(structure: Structure, refinement: Refinement, u: int, p: int) -> Hashable:
    """Where a parent's breaks and tails lie among those of a unit that is recomputed from it."""
    if p not in refinement.breaks and p not in refinement.tails:
        return ()
    marks = [structure.earliest[u], structure.latest[u], *refinement.breaks.get(u, [])]
    return tuple(
        (sum(mark < k for mark in marks), sum(mark <= k for mark in marks))
        for k in (*refinement.breaks.get(p, []), *refinement.tails.get(p, []))
    )


def _kind(structure: Structure, u: int) -> str:
    unit = structure.problem.units[u]
    return unit.kind or unit.name


def _interior_edges(structure: Structure) -> Iterator[Edge]:
    """Edges that have rows (2): to parents that backward does not read."""
    for p, readers in enumerate(structure.rebuilders):
        if not structure.problem.units[p].read_at:
            yield from ((u, p) for u in readers)


def _numbered(keys: Mapping[int, Hashable]) -> dict[int, int]:
    numbers: dict[Hashable, int] = {}
    return {u: numbers.setdefault(key, len(numbers)) for u, key in keys.items()}


def _add_at_hand(model: LinearModel, variables: Variables, members: Members) -> None:
    """(1) of each class: as many actions as units if backward reads them, else at most."""
    for first, units in members.items():
        unit = variables.structure.problem.units[first]
        count = float(len(units))
        terms = [(column, 1.0) for column in variables.actions[first].values()]
        model.row(f"at_hand[{unit.name}]", terms, lower=count * bool(unit.read_at), upper=count)


def _add_parents(
    model: LinearModel, variables: Variables, members: Members, first_of: Mapping[int, int]
) -> None:
    """(2) between two classes: colour refinement gave each unit of one as many edges as the next."""
    structure = variables.structure
    edges = Counter((first_of[u], first_of[p]) for u, p in _interior_edges(structure))
    needed: dict[int, list[Term]] = defaultdict(list)
    for (u, p), count in edges.items():
        each_u, each_p = count / len(members[u]), count / len(members[p])
        rebuilt = variables.actions[u][RECOMPUTE]
        at_hand = [(column, -each_p) for column in variables.actions[p].values()]
        name = f"{structure.problem.units[u].name},{structure.problem.units[p].name}"
        model.row(f"parents[{name}]", [(rebuilt, each_u), *at_hand], upper=0.0)
        needed[p].append((rebuilt, -each_u))
    for p, terms in needed.items():
        own = variables.actions[p].get(RECOMPUTE)
        if own is not None:
            name = structure.problem.units[p].name
            model.row(f"needed[{name}]", [(own, 1.0), *terms], upper=0.0)


def _add_inexactness(
    model: LinearModel, variables: Variables, members: Members, groups: Mapping[int, str]
) -> None:
    """(5) summed over the edges between two groups, as if all of a class had the usual number of them.

    Args:
        model: where the rows go.
        variables: columns of the classes.
        members: units of each class, by its first.
        groups: name of the group that each unit is in.
    """
    structure = variables.structure
    first_of = {u: first for first, units in members.items() for u in units}
    edges: dict[tuple[str, str], list[Edge]] = defaultdict(list)
    for u, group in groups.items():
        if first_of[u] in variables.inexact:
            for p in structure.parents[u]:
                if structure.tainted[p]:
                    edges[group, groups[p]].append((u, p))
    for (readers, parents), between in edges.items():
        slack = 0.0
        terms: list[Term] = []
        degrees = Counter(u for u, _ in between)
        for first in dict.fromkeys(first_of[u] for u in degrees):
            most, missing, _ = usual(members[first], degrees)
            terms.append((variables.actions[first][RECOMPUTE], most))
            terms.append((variables.inexact[first], -most))
            slack += missing
        degrees = Counter(p for _, p in between)
        for first in dict.fromkeys(first_of[p] for p in degrees):
            most, _, extra = usual(members[first], degrees)
            terms += [(own, -most * weight) for own, weight in exact_terms(variables, first)]
            slack += extra
        model.row(f"inexactness[{readers},{parents}]", terms, upper=slack)
