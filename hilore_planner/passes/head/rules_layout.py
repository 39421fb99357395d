"""Recipes of elementwise ops, constants and changes of layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node

from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.operands import align, leaves, sizes, value_args
from hilore_planner.passes.head.shapes import (
    chunk_dim,
    holds_rows,
    positive_dim,
    product,
    same,
    shape_of,
)
from hilore_planner.passes.head.site import NotRowWiseError, Operand, Recipe, Rows, Size


def pointwise(node: Node, rows: Rows) -> Recipe:
    """An elementwise op: operands are broadcast to the result."""
    shape = shape_of(node)

    def of(leaf: Node) -> Operand:
        return align(leaf, shape, rows)

    return Recipe(node.target, leaves(node.args, of), leaves(node.kwargs, of))


def full(node: Node, rows: Rows) -> Recipe:
    """A constant of every row."""
    rest = leaves(node.args[1:], Operand)
    return Recipe(node.target, (sizes(node, node.args[0], rows), *rest), dict(node.kwargs))


def expand(node: Node, rows: Rows) -> Recipe:
    """A broadcast."""
    (source,) = value_args(node, 0)
    operand = align(source, shape_of(node), rows)
    return Recipe(node.target, (operand, sizes(node, node.args[1], rows)), {})


def view(node: Node, rows: Rows) -> Recipe:
    """Rows may be split or joined, but not with other dimensions."""
    (source,) = value_args(node, 0)
    out, own = shape_of(node), shape_of(source)
    block = product(out[rows.axis : rows.axis + rows.count])
    before = product(out[: rows.axis])
    for axis in range(len(own)):
        for count in range(1, len(own) - axis + 1):
            if same(product(own[:axis]), before) and same(product(own[axis : axis + count]), block):
                operand = Operand(source, Rows(axis, count, rows.domain))
                if _rest(own, operand.rows) == _rest(out, rows):
                    return Recipe(None, (operand,), {})
                return Recipe(node.target, (operand, sizes(node, node.args[1], rows)), {})
    raise NotRowWiseError(node, "a view merges rows with another dimension")


def _rest(shape: Sequence[Size], rows: Rows | None) -> tuple[list[Size], list[Size]]:
    assert rows is not None
    return list(shape[: rows.axis]), list(shape[rows.axis + rows.count :])


def unsqueeze(node: Node, rows: Rows) -> Recipe:
    """A new dimension, of size one."""
    (source,) = value_args(node, 0)
    written: Any = node.args[1]
    dim = positive_dim(written, len(shape_of(node)))
    if holds_rows(dim, rows):
        if rows.count == 1:
            raise NotRowWiseError(node, "the row dimension is new")
        return Recipe(None, (Operand(source, replace(rows, count=rows.count - 1)),), {})
    axis = rows.axis - 1 if dim < rows.axis else rows.axis
    operand = Operand(source, replace(rows, axis=axis))
    return Recipe(node.target, (operand, chunk_dim(dim, rows)), {})


def permute(node: Node, rows: Rows) -> Recipe:
    """Dimensions change places; rows stay together."""
    (source,) = value_args(node, 0)
    written: Any = node.args[1]
    order = [positive_dim(dim, len(written)) for dim in written]
    moved = order[rows.axis : rows.axis + rows.count]
    if moved != list(range(moved[0], moved[0] + rows.count)):
        raise NotRowWiseError(node, "the row dimensions are permuted")
    own = replace(rows, axis=moved[0])
    kept = [d for d in order if d == moved[0] or not holds_rows(d, own)]
    return Recipe(node.target, (Operand(source, own), [chunk_dim(d, own) for d in kept]), {})


def pad(node: Node, rows: Rows) -> Recipe:
    """Zeros beside the rows' dimensions."""
    (source,) = value_args(node, 0)
    written: Any = node.args[1]
    if not all(map(is_zero, node.args[2:])):
        raise NotRowWiseError(node, "it is padded with something else than zeros")
    rank = len(shape_of(node))
    widths = {rank - 1 - place: written[2 * place :][:2] for place in range(len(written) // 2)}
    if any(map(any, (widths.pop(dim, ()) for dim in range(rank) if holds_rows(dim, rows)))):
        raise NotRowWiseError(node, "rows are padded")
    moved = {chunk_dim(dim, rows): width for dim, width in widths.items()}
    chunk_rank = rank - rows.count + 1
    padding = [w for dim in reversed(range(chunk_rank)) for w in moved.get(dim, (0, 0))]
    return Recipe(node.target, (Operand(source, rows), padding), {})
