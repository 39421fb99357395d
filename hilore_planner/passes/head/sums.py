"""Sums over all rows, to which every chunk adds its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head.operands import value_args
from hilore_planner.passes.head.shapes import chunk_dim, positive_dim, shape_of
from hilore_planner.passes.head.site import Operand, Recipe, Rows

aten = torch.ops.aten


def row_sum(node: Node, known: Callable[[Node], Rows | None]) -> Recipe | None:
    """The part of a sum over all rows that one chunk gives; None if ``node`` is no such sum."""
    if node.target is aten.mm.default:
        left, right = value_args(node, 0, 1)
        placed = [rows for rows in (known(left), known(right)) if rows is not None]
        domain = placed[0].domain if placed else "kept"
        made = (Operand(left, Rows(1, 1, domain)), Operand(right, Rows(0, 1, domain)))
        agree = (operand.rows == known(operand.node) for operand in made if known(operand.node))
        return Recipe(node.target, made, dict(node.kwargs)) if all(agree) else None
    if node.target is aten.sum.dim_IntList:
        return _reduction(node, known)
    return None


def _reduction(node: Node, known: Callable[[Node], Rows | None]) -> Recipe | None:
    (source,) = value_args(node, 0)
    rows, rank = known(source), len(shape_of(source))
    if rows is None:
        return None
    dims: Any = node.args[1]
    places = {positive_dim(dim, rank) for dim in dims}
    block = set(range(rows.axis, rows.axis + rows.count))
    if not block <= places:
        return None
    moved = [chunk_dim(p, rows) for p in sorted(places - block)] + [rows.axis]
    return Recipe(node.target, (Operand(source, rows), sorted(moved), *node.args[2:]), node.kwargs)
