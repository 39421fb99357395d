"""Plain tables: aligned columns without rules, some of which give way in a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

GAP = 2
INDENT = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    right: bool = False
    """Whether its cells are aligned right, as numbers are."""
    give_way: int = 0
    """Columns with the greatest number are left out first where space is short; 0 never are."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: cells, one per column, or one heading across all of them."""

    cells: tuple[str, ...]
    style: str = ""
    """Of the first cell, or of the heading."""


def table(columns: Sequence[Column], lines: Sequence[Line], width: int) -> list[Text]:
    """Lays a table out.

    Args:
        columns: from left to right.
        lines: lines with as many cells as there are columns, or with one cell: a heading.
        width: characters to a line; columns give way to fit, and what is still too long is cut.

    Returns:
        One text per line, titles first, with no space at the end of a line.
    """
    rows = [line for line in lines if len(line.cells) == len(columns)]
    widths = [
        max(len(column.title), *(len(row.cells[index]) for row in rows), 0)
        for index, column in enumerate(columns)
    ]
    shown = _that_fit(columns, widths, width)
    titles = Line(tuple(column.title for column in columns))
    texts = [_row(titles, columns, widths, shown, style="dim")]
    for line in lines:
        if len(line.cells) == len(columns):
            texts.append(_row(line, columns, widths, shown))
        else:
            texts.append(Text(line.cells[0], style=line.style))
    for text in texts:
        text.rstrip()
        text.truncate(width, overflow="ellipsis")
    return texts


def _that_fit(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    shown = list(range(len(columns)))
    while INDENT + sum(widths[index] + GAP for index in shown) - GAP > width:
        candidates = [index for index in shown if columns[index].give_way]
        if not candidates:
            break
        shown.remove(max(candidates, key=lambda index: columns[index].give_way))
    return shown


def _row(
    line: Line,
    columns: Sequence[Column],
    widths: Sequence[int],
    shown: Sequence[int],
    style: str = "",
) -> Text:
    text = Text(" " * INDENT, style=style)
    for index in shown:
        cell = line.cells[index]
        padded = cell.rjust(widths[index]) if columns[index].right else cell.ljust(widths[index])
        text.append(padded, style=line.style if index == shown[0] else "")
        text.append(" " * GAP)
    return text
