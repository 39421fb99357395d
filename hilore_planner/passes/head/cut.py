"""A slice of rows that is taken of logits, after the matmul that made more of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head.shapes import positive_dim, same, shape_of
from hilore_planner.passes.head.site import NotRowWiseError, RowSlice

aten = torch.ops.aten


def row_slice(wide: Collection[Node], logits: Node) -> tuple[Node, RowSlice] | None:
    """The slice of rows that everything reads, and a node that takes it; None if there is none.

    Raises:
        NotRowWiseError: there are several different ones.
    """
    slices = [user for value in wide for user in value.users if user.target is aten.slice.Tensor]
    widths = [shape_of(logits)[1], *(shape_of(node)[-1] for node in slices if node in wide)]
    found: tuple[Node, RowSlice] | None = None
    for value in wide:
        for user in value.users:
            is_wide = any(same(shape_of(value)[-1], width) for width in widths)
            if user not in slices or not is_wide:
                continue
            cut = _cut(user, value)
            if found is not None and cut is not None and not _equal(cut, found[1]):
                raise NotRowWiseError(user, "logits are sliced by rows in two ways")
            found = found if cut is None else (user, cut)
    return found


def _cut(node: Node, source: Node) -> RowSlice | None:
    dim: Any = node.args[1]
    lead, place = shape_of(source)[:-1], positive_dim(dim, len(shape_of(source)))
    kept = shape_of(node)[:-1]
    if place == len(lead) or all(map(same, lead, kept)):
        return None
    start, stop, *_ = (*node.args[2:4], None, None)
    return RowSlice(lead, kept, place, start, stop)


def _equal(left: RowSlice, right: RowSlice) -> bool:
    return (left.dim, left.start, left.stop) == (right.dim, right.start, right.stop) and all(
        map(same, (*left.lead, *left.kept), (*right.lead, *right.kept))
    )
