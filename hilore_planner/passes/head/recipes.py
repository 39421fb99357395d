"""What each operation becomes on a chunk of rows.

``recipe(node, rows)`` answers: if ``node``'s value has its rows at ``rows``, what must its operands
look like, and which call yields the chunk? It raises :class:`NotRowWiseError` where rows mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.shapes import (
    chunk_dim,
    holds_rows,
    positive_dim,
    product,
    same,
    shape_of,
    tensor_of,
)
from hilore_planner.passes.head.site import (
    ChunkRows,
    NotRowWiseError,
    Operand,
    Recipe,
    Rows,
    Size,
)

aten = torch.ops.aten
prims = torch.ops.prims


def recipe(node: Node, rows: Rows) -> Recipe:
    """How to make the chunk of ``node`` whose rows lie at ``rows``."""
    rule = _RULES.get(node.target)
    if rule is not None:
        return rule(node, rows)
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return _pointwise(node, rows)
    raise NotRowWiseError(node, f"{node.target} is not known to work row by row")


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


def _leaves(value: Any, of: Callable[[Node], Operand]) -> Any:
    def fill(leaf: Any) -> Any:
        return of(leaf) if isinstance(leaf, Node) else leaf

    return map_aggregate(value, fill)


def value_args(node: Node, *indices: int) -> tuple[Node, ...]:
    """Arguments that are values of the graph."""
    found = tuple(node.args[index] for index in indices)
    assert all(isinstance(arg, Node) for arg in found)
    return found  # type: ignore[return-value]


def _pointwise(node: Node, rows: Rows) -> Recipe:
    shape = shape_of(node)

    def of(leaf: Node) -> Operand:
        return align(leaf, shape, rows)

    return Recipe(node.target, _leaves(node.args, of), _leaves(node.kwargs, of))


def _sizes(node: Node, written: Any, rows: Rows) -> list[Any]:
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


def _full(node: Node, rows: Rows) -> Recipe:
    rest = _leaves(node.args[1:], Operand)
    return Recipe(node.target, (_sizes(node, node.args[0], rows), *rest), dict(node.kwargs))


def _expand(node: Node, rows: Rows) -> Recipe:
    (source,) = value_args(node, 0)
    operand = align(source, shape_of(node), rows)
    return Recipe(node.target, (operand, _sizes(node, node.args[1], rows)), {})


def _view(node: Node, rows: Rows) -> Recipe:
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
                return Recipe(node.target, (operand, _sizes(node, node.args[1], rows)), {})
    raise NotRowWiseError(node, "a view merges rows with another dimension")


def _rest(shape: Sequence[Size], rows: Rows | None) -> tuple[list[Size], list[Size]]:
    assert rows is not None
    return list(shape[: rows.axis]), list(shape[rows.axis + rows.count :])


def _unsqueeze(node: Node, rows: Rows) -> Recipe:
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


def _permute(node: Node, rows: Rows) -> Recipe:
    (source,) = value_args(node, 0)
    written: Any = node.args[1]
    order = [positive_dim(dim, len(written)) for dim in written]
    moved = order[rows.axis : rows.axis + rows.count]
    if moved != list(range(moved[0], moved[0] + rows.count)):
        raise NotRowWiseError(node, "the row dimensions are permuted")
    own = replace(rows, axis=moved[0])
    kept = [d for d in order if d == moved[0] or not holds_rows(d, own)]
    return Recipe(node.target, (Operand(source, own), [chunk_dim(d, own) for d in kept]), {})


def _along(dim_arg: int, same_shape_args: Sequence[int]) -> Callable[[Node, Rows], Recipe]:
    """An op along one dimension that keeps the rank: gather, scatter, softmax, cumsum, slice."""

    def rule(node: Node, rows: Rows) -> Recipe:
        dim: Any = node.args[dim_arg] if len(node.args) > dim_arg else 0
        place = positive_dim(dim, len(shape_of(node)))
        if holds_rows(place, rows):
            raise NotRowWiseError(node, f"{node.target} runs along the rows")
        args = list(_leaves(node.args, Operand))
        for index in same_shape_args:
            (read,) = value_args(node, index)
            args[index] = Operand(read, rows)
        args[dim_arg] = chunk_dim(place, rows)
        return Recipe(node.target, tuple(args), _leaves(node.kwargs, Operand))

    return rule


def _slice(node: Node, rows: Rows) -> Recipe:
    """A slice of rows makes kept rows of all; in a chunk, these are all there is."""
    dim: Any = node.args[1]
    if not holds_rows(positive_dim(dim, len(shape_of(node))), rows):
        return _along(1, [0])(node, rows)
    if rows.domain == "all" or len(node.args) > 4:
        raise NotRowWiseError(node, "rows are sliced twice, or with a step")
    (source,) = value_args(node, 0)
    return Recipe(None, (Operand(source, replace(rows, domain="all")),), {})


def _slice_scatter(node: Node, rows: Rows) -> Recipe:
    """The backward of a slice of rows: the others are zero and are left out."""
    dim: Any = node.args[2]
    if not holds_rows(positive_dim(dim, len(shape_of(node))), rows):
        return _along(2, [0, 1])(node, rows)
    if rows.domain == "kept" or not is_zero(node.args[0]) or len(node.args) > 5:
        raise NotRowWiseError(node, "rows are written into others")
    (source,) = value_args(node, 1)
    return Recipe(None, (Operand(source, replace(rows, domain="kept")),), {})


def _reduction(node: Node, rows: Rows) -> Recipe:
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


def _drop_dims(node: Node, rows: Rows) -> Recipe:
    """``select`` and ``squeeze``: dimensions behind the rows go away."""
    (source,) = value_args(node, 0)
    rank = len(shape_of(source))
    written: Any = node.args[1]
    places = [positive_dim(d, rank) for d in ([written] if isinstance(written, int) else written)]
    if any(place < rows.axis + rows.count for place in places):
        raise NotRowWiseError(node, f"{node.target} picks or drops rows")
    moved: Any = [chunk_dim(place, rows) for place in places]
    moved = moved[0] if isinstance(written, int) else moved
    rest = _leaves(node.args[2:], Operand)
    return Recipe(node.target, (Operand(source, rows), moved, *rest), {})


def _select_scatter(node: Node, rows: Rows) -> Recipe:
    base, source = value_args(node, 0, 1)
    dim: Any = node.args[2]
    place = positive_dim(dim, len(shape_of(node)))
    if place < rows.axis + rows.count:
        raise NotRowWiseError(node, "select_scatter writes single rows")
    rest = _leaves(node.args[3:], Operand)
    args = (Operand(base, rows), Operand(source, rows), chunk_dim(place, rows), *rest)
    return Recipe(node.target, args, {})


def _mm(node: Node, rows: Rows) -> Recipe:
    left, right = value_args(node, 0, 1)
    if (rows.axis, rows.count) == (0, 1):
        return Recipe(node.target, (Operand(left, rows), Operand(right)), dict(node.kwargs))
    return Recipe(node.target, (Operand(left), Operand(right, rows)), dict(node.kwargs))


def _addmm(node: Node, rows: Rows) -> Recipe:
    bias, left, right = value_args(node, 0, 1, 2)
    if (rows.axis, rows.count) != (0, 1):
        raise NotRowWiseError(node, "addmm with rows in its second dimension")
    moved = (align(bias, shape_of(node), rows), Operand(left, rows), Operand(right))
    return Recipe(node.target, moved, dict(node.kwargs))


_REDUCTIONS = (
    aten.amax.default,
    aten.amin.default,
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.argmax.default,
    aten.logsumexp.default,
    aten.any.dim,
)

_RULES: dict[Any, Callable[[Node, Rows], Recipe]] = {
    aten.full.default: _full,
    aten.expand.default: _expand,
    aten.view.default: _view,
    aten.reshape.default: _view,
    aten._unsafe_view.default: _view,
    aten.alias.default: _pointwise,
    aten.detach.default: _pointwise,
    aten.unsqueeze.default: _unsqueeze,
    aten.permute.default: _permute,
    aten.select.int: _drop_dims,
    aten.squeeze.dim: _drop_dims,
    aten.squeeze.dims: _drop_dims,
    aten.select_scatter.default: _select_scatter,
    aten.slice.Tensor: _slice,
    aten.slice_scatter.default: _slice_scatter,
    aten.gather.default: _along(1, [0, 2]),
    aten.scatter_add.default: _along(1, [0, 2, 3]),
    aten.scatter.src: _along(1, [0, 2, 3]),
    aten.scatter.value: _along(1, [0, 2]),
    aten.cumsum.default: _along(1, [0]),
    aten._log_softmax.default: _along(1, [0]),
    aten._softmax.default: _along(1, [0]),
    aten._log_softmax_backward_data.default: _along(2, [0, 1]),
    aten._softmax_backward_data.default: _along(2, [0, 1]),
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    **dict.fromkeys(_REDUCTIONS, _reduction),
}
