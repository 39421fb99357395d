"""Shapes of graph values, and where rows can be in them; sizes may be symbolic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from hilore_planner.passes import compat
from hilore_planner.passes.head.site import Rows, Size


def tensor_of(node: Node) -> torch.Tensor | None:
    """The fake tensor a node stands for; None for symbols, tuples and the output node."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def shape_of(node: Node) -> tuple[Size, ...]:
    """Sizes of a tensor node; empty for anything else."""
    value = tensor_of(node)
    return () if value is None else tuple(value.shape)


def same(left: Size, right: Size) -> bool:
    """Whether two sizes are equal whatever the symbols are; adds no guard."""
    return statically_known_true(left == right)


def product(sizes: Sequence[Size]) -> Size:
    """Number of elements."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def numel_hint(node: Node) -> int:
    """Elements of a tensor node at the traced sizes; 0 for anything else."""
    if tensor_of(node) is None:
        return 0
    total = 1
    for size in shape_of(node):
        total *= compat.hint(size)
    return total


def row_blocks(shape: Sequence[Size], rows: Size) -> Iterator[Rows]:
    """Every way the rows can lie in a shape, shortest first for each axis."""
    for axis in range(len(shape)):
        for count in range(1, len(shape) - axis + 1):
            if same(product(shape[axis : axis + count]), rows):
                yield Rows(axis, count)


def positive_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


def chunk_dim(dim: int, rows: Rows) -> int:
    """Where a dimension that holds no rows is in the chunk."""
    return dim if dim < rows.axis else dim - rows.count + 1


def holds_rows(dim: int, rows: Rows) -> bool:
    """Whether a dimension is one of those that enumerate rows."""
    return rows.axis <= dim < rows.axis + rows.count
