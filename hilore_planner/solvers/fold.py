"""A lower bound from the program folded over its equal columns.

Equal layers give a program with many columns that could change places. Folding adds up each class
of them into one integer column, the count, and the rows between classes into one row: what is left
has the size of a layer and solves in milliseconds. Every solution of the program gives one of the
folded program, so the folded optimum is a bound; and since counts are whole, it is far above the LP
relaxation's where layers are traded against a cap.

Classes come from colour refinement (Grohe et al., Dimension Reduction via Colour Refinement, 2014),
blind to the rows that chain layer to layer; where a row treats the members of a class differently,
it is relaxed to what holds for their sum.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping

from hilore_planner.solvers.linear import Column, LinearModel

_SHARED = ("peak", "risk")
"""Families of rows that have columns of all layers: each stays a row of its own."""

_CHAINING = ("inexactness",)
"""Families of rows that join a layer to the next."""

Row = int
Colour = int


def fold(model: LinearModel, labels: Mapping[Column, Hashable]) -> LinearModel:
    """The folded program: its optimum is at most that of ``model``.

    Args:
        model: the program.
        labels: what each column is about; columns of different labels are never added up.
    """
    rows = _rows(model)
    colours = _colours(model, rows, labels)
    members: dict[Colour, list[Column]] = defaultdict(list)
    for column, colour in enumerate(colours):
        members[colour].append(column)
    folded = LinearModel()
    for colour in range(len(members)):
        first = members[colour][0]
        folded.column(
            model.column_names[first],
            upper=sum(model.column_upper[column] for column in members[colour]),
            integer=model.column_integer[first],
            cost=model.cost[first],
        )
    for group in _row_groups(model, rows, colours):
        _add_folded(folded, model, members, [(row, rows[row]) for row in group], colours)
    return folded


def _rows(model: LinearModel) -> dict[Row, dict[Column, float]]:
    rows: dict[Row, dict[Column, float]] = {row: {} for row in range(len(model.row_names))}
    for row, column, value in model.entries:
        rows[row][column] = value
    return rows


def _family(model: LinearModel, row: Row) -> str:
    return model.row_names[row].partition("[")[0]


def _colours(
    model: LinearModel,
    rows: Mapping[Row, Mapping[Column, float]],
    labels: Mapping[Column, Hashable],
) -> list[Colour]:
    """A colour for each column: equal where columns could change places."""
    shared: dict[Column, list[Hashable]] = defaultdict(list)
    local: list[tuple[Row, Column, float]] = []
    for row, entries in rows.items():
        family = _family(model, row)
        for column, value in entries.items():
            if family in _SHARED:
                shared[column].append((row, value))
            elif family not in _CHAINING:
                local.append((row, column, value))
    colours = _numbered(
        (labels.get(c), model.column_integer[c], model.cost[c], tuple(shared[c]))
        for c in range(len(model.column_names))
    )
    known = 0
    while len(set(colours)) > known:
        known = len(set(colours))
        seen: dict[Row, list[tuple[Colour, float]]] = defaultdict(list)
        for row, column, value in local:
            seen[row].append((colours[column], value))
        row_colour = {
            row: hash((model.row_lower[row], model.row_upper[row], tuple(sorted(entries))))
            for row, entries in seen.items()
        }
        around: dict[Column, list[tuple[int, float]]] = defaultdict(list)
        for row, column, value in local:
            around[column].append((row_colour[row], value))
        colours = _numbered(
            (colour, tuple(sorted(around[column]))) for column, colour in enumerate(colours)
        )
    return colours


def _numbered(keys: Iterable[Hashable]) -> list[Colour]:
    numbers: dict[Hashable, Colour] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _row_groups(
    model: LinearModel, rows: Mapping[Row, Mapping[Column, float]], colours: list[Colour]
) -> list[list[Row]]:
    """Rows that say the same of their columns' colours."""
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row, entries in rows.items():
        if _family(model, row) in _SHARED:
            groups[row].append(row)
        else:
            coloured = tuple(sorted((colours[c], value) for c, value in entries.items()))
            groups[model.row_lower[row], model.row_upper[row], coloured].append(row)
    return list(groups.values())


def _add_folded(
    folded: LinearModel,
    model: LinearModel,
    members: Mapping[Colour, list[Column]],
    group: list[tuple[Row, Mapping[Column, float]]],
    colours: list[Colour],
) -> None:
    """Add the sum of the rows: most members' coefficient for all, the others' difference relaxed."""
    lower = sum(model.row_lower[row] for row, _ in group)
    upper = sum(model.row_upper[row] for row, _ in group)
    summed: dict[Column, float] = defaultdict(float)
    for _, entries in group:
        for column, value in entries.items():
            summed[column] += value
    terms = []
    for colour in {colours[column] for column in summed}:
        values = [summed.get(column, 0.0) for column in members[colour]]
        most = Counter(values).most_common(1)[0][0]
        for column, value in zip(members[colour], values, strict=True):
            upper -= min(0.0, value - most) * model.column_upper[column]
            lower -= max(0.0, value - most) * model.column_upper[column]
        terms.append((colour, most))
    folded.row(model.row_names[group[0][0]], terms, lower=lower, upper=upper)
