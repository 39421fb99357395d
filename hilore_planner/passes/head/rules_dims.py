"""Recipes of ops along a dimension, of row slices, and of matmuls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node

from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.operands import align, leaves, value_args
from hilore_planner.passes.head.shapes import chunk_dim, holds_rows, positive_dim, shape_of
from hilore_planner.passes.head.site import NotRowWiseError, Operand, Recipe, Rows


def along(dim_arg: int, same_shape_args: Sequence[int]) -> Callable[[Node, Rows], Recipe]:
    """An op along one dimension that keeps the rank: gather, scatter, softmax, cumsum, slice."""

    def rule(node: Node, rows: Rows) -> Recipe:
        dim: Any = node.args[dim_arg] if len(node.args) > dim_arg else 0
        place = positive_dim(dim, len(shape_of(node)))
        if holds_rows(place, rows):
            raise NotRowWiseError(node, f"{node.target} runs along the rows")
        args = list(leaves(node.args, Operand))
        for index in same_shape_args:
            (read,) = value_args(node, index)
            args[index] = Operand(read, rows)
        args[dim_arg] = chunk_dim(place, rows)
        return Recipe(node.target, tuple(args), leaves(node.kwargs, Operand))

    return rule


def slice_rows(node: Node, rows: Rows) -> Recipe:
    """A slice of rows makes kept rows of all; in a chunk, these are all there is."""
    dim: Any = node.args[1]
    if not holds_rows(positive_dim(dim, len(shape_of(node))), rows):
        return along(1, [0])(node, rows)
    if rows.domain == "all" or len(node.args) > 4:
        raise NotRowWiseError(node, "rows are sliced twice, or with a step")
    (source,) = value_args(node, 0)
    return Recipe(None, (Operand(source, replace(rows, domain="all")),), {})


def scatter_rows(node: Node, rows: Rows) -> Recipe:
    """The backward of a slice of rows: the others are zero and are left out."""
    dim: Any = node.args[2]
    if not holds_rows(positive_dim(dim, len(shape_of(node))), rows):
        return along(2, [0, 1])(node, rows)
    if rows.domain == "kept" or not is_zero(node.args[0]) or len(node.args) > 5:
        raise NotRowWiseError(node, "rows are written into others")
    (source,) = value_args(node, 1)
    return Recipe(None, (Operand(source, replace(rows, domain="kept")),), {})


def reduction(node: Node, rows: Rows) -> Recipe:
    """A reduction over dimensions behind the rows, such as the vocabulary."""
    (source,) = value_args(node, 0)
    rank = len(shape_of(source))
    written: Any = node.args[1] if len(node.args) > 1 else None
    dims = [written] if isinstance(written, int) else list(written or range(rank))
    places = [positive_dim(dim, rank) for dim in dims]
    if any(place < rows.axis + rows.count for place in places):
        raise NotRowWiseError(node, f"{node.target} reduces over rows")
    moved: Any = [chunk_dim(place, rows) for place in places]
    moved = moved[0] if isinstance(written, int) else moved
    args = (Operand(source, rows), moved, *node.args[2:])
    return Recipe(node.target, args, dict(node.kwargs))


def drop_dims(node: Node, rows: Rows) -> Recipe:
    """``select`` and ``squeeze``: dimensions behind the rows go away."""
    (source,) = value_args(node, 0)
    rank = len(shape_of(source))
    written: Any = node.args[1]
    places = [positive_dim(d, rank) for d in ([written] if isinstance(written, int) else written)]
    if any(place < rows.axis + rows.count for place in places):
        raise NotRowWiseError(node, f"{node.target} picks or drops rows")
    moved: Any = [chunk_dim(place, rows) for place in places]
    moved = moved[0] if isinstance(written, int) else moved
    rest = leaves(node.args[2:], Operand)
    return Recipe(node.target, (Operand(source, rows), moved, *rest), {})


def select_scatter(node: Node, rows: Rows) -> Recipe:
    """One index of a dimension behind the rows is written."""
    base, source = value_args(node, 0, 1)
    dim: Any = node.args[2]
    place = positive_dim(dim, len(shape_of(node)))
    if place < rows.axis + rows.count:
        raise NotRowWiseError(node, "select_scatter writes single rows")
    rest = leaves(node.args[3:], Operand)
    args = (Operand(base, rows), Operand(source, rows), chunk_dim(place, rows), *rest)
    return Recipe(node.target, args, {})


def mm(node: Node, rows: Rows) -> Recipe:
    """A matmul whose rows are those of its left operand, or columns those of its right one."""
    left, right = value_args(node, 0, 1)
    if (rows.axis, rows.count) == (0, 1):
        return Recipe(node.target, (Operand(left, rows), Operand(right)), dict(node.kwargs))
    return Recipe(node.target, (Operand(left), Operand(right, rows)), dict(node.kwargs))


def addmm(node: Node, rows: Rows) -> Recipe:
    """A matmul with bias."""
    bias, left, right = value_args(node, 0, 1, 2)
    if (rows.axis, rows.count) != (0, 1):
        raise NotRowWiseError(node, "addmm with rows in its second dimension")
    moved = (align(bias, shape_of(node), rows), Operand(left, rows), Operand(right))
    return Recipe(node.target, moved, dict(node.kwargs))
