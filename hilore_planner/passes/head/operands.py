"""The operands of a recipe: how one chunk reads what an operation reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node
from torch.fx.node import map_aggregate

from hilore_planner.passes.head.shapes import holds_rows, same, shape_of, tensor_of
from hilore_planner.passes.head.site import ChunkRows, NotRowWiseError, Operand, Recipe, Rows, Size


def operands(made: Recipe) -> list[Operand]:
    """All operands of a recipe, in argument order."""
    found: list[Operand] = []

    def collect(leaf: Any) -> Any:
        if isinstance(leaf, Operand):
            found.append(leaf)
        return leaf

    map_aggregate((made.args, made.kwargs), collect)
    return found


def align(node: Node, shape: Sequence[Size], rows: Rows) -> Operand:
    """An operand broadcast to ``shape``, whose rows lie at ``rows``."""
    own = shape_of(node)
    missing = len(shape) - len(own)
    first, last = rows.axis - missing, rows.axis + rows.count - missing
    if tensor_of(node) is None or last <= 0:
        return Operand(node)
    lead, own_lead = shape[rows.axis : rows.axis + rows.count], own[max(first, 0) : last]
    if len(own_lead) == len(lead) and all(map(same, own_lead, lead)):
        return Operand(node, replace(rows, axis=first))
    if all(same(size, 1) for size in own_lead):
        block = Rows(max(first, 0), len(own_lead))
        return Operand(node, merged=block) if len(own_lead) > 1 else Operand(node)
    if first > 0:
        raise NotRowWiseError(node, "a value is broadcast over rows behind another dimension")
    return Operand(node, replace(rows, axis=0), spread=(*lead, *own[last:]))


def leaves(value: Any, of: Callable[[Node], Operand]) -> Any:
    """``value`` with every node in it replaced."""

    def fill(leaf: Any) -> Any:
        return of(leaf) if isinstance(leaf, Node) else leaf

    return map_aggregate(value, fill)


def value_args(node: Node, *indices: int) -> tuple[Node, ...]:
    """Arguments that are values of the graph."""
    found = tuple(node.args[index] for index in indices)
    assert all(isinstance(arg, Node) for arg in found)
    return found  # type: ignore[return-value]


def sizes(node: Node, written: Any, rows: Rows) -> list[Any]:
    """A size argument for the chunk: the row dimensions become one of the chunk's rows."""
    sizes: list[Any] = []
    for dim, size in enumerate(shape_of(node)):
        if holds_rows(dim, rows):
            if dim == rows.axis:
                sizes.append(ChunkRows.SIZE)
        elif isinstance(size, int):
            sizes.append(size)
        elif isinstance(written[dim], Node):
            sizes.append(Operand(written[dim]))
        else:
            raise NotRowWiseError(node, f"size {size} of dimension {dim} is not in the graph")
    return sizes
