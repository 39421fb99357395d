"""Reading or writing one value a row, as a comparison that fuses.

``gather``'s backward writes zeros of vocabulary size and scatters into them: two passes over memory
that no compiler fuses. With one index a row it is ``where(index == arange(V), value, 0)``. ``gather``
itself reads logits at places of its own, so that no kernel may write their gradient over them;
``where(index == arange(V), logits, 0).sum()`` reads them where the other sums over the row do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.operands import value_args
from hilore_planner.passes.head.shapes import positive_dim, same, shape_of, tensor_of

aten = torch.ops.aten
prims = torch.ops.prims


def compare_instead_of_scatter(emitter: Emitter, node: Node) -> Node | None:
    """What stands for such a scatter over the last dimension; None if ``node`` is none."""
    return _comparison(emitter, node) if _is_one_hot(node) else None


def sum_instead_of_gather(emitter: Emitter, node: Node, logits: Node, index: Node) -> Node:
    """What stands for ``node``, a gather of one value a row, on these ``logits`` (rows, V) and ``index`` (rows, 1).

    Exact: all but one of the values summed are zero. An index outside of the vocabulary gives NaN.
    """
    picked = _where_hit(emitter, node, logits, index, logits)
    value = tensor_of(picked)
    assert value is not None
    total = emitter.call(node, aten.sum.dim_IntList, picked, [-1], True)
    below = emitter.call(node, aten.lt.Scalar, index, emitter.size(shape_of(logits)[-1]))
    known = emitter.call(node, aten.ge.Scalar, index, 0)
    known = emitter.call(node, aten.logical_and.default, known, below)
    nothing = emitter.call(
        node, aten.full.default, [], math.nan, dtype=value.dtype, device=value.device
    )
    return emitter.call(node, aten.where.self, known, total, nothing)


def picks_one(node: Node) -> bool:
    """Whether ``node`` gathers one floating-point value a row, along the last dimension."""
    if node.target is not aten.gather.default:
        return False
    (index,), value = value_args(node, 2), tensor_of(node)
    dim: Any = node.args[1]
    rank = len(shape_of(node))
    return (
        value is not None
        and value.is_floating_point()
        and positive_dim(dim, rank) == rank - 1
        and same(shape_of(index)[-1], 1)
    )


def _comparison(emitter: Emitter, node: Node) -> Node:
    index, source = value_args(node, 2, 3)
    return _where_hit(emitter, node, node, index, source)


def _where_hit(emitter: Emitter, node: Node, shaped: Node, index: Node, source: Node) -> Node:
    """``source`` where a row's index is, else zero, in the shape and dtype of ``shaped``."""
    value = tensor_of(shaped)
    assert value is not None
    like = {"dtype": value.dtype, "device": value.device}
    numbers = emitter.call(
        node,
        prims.iota.default,
        emitter.size(shape_of(shaped)[-1]),
        start=0,
        step=1,
        dtype=torch.int64,
        device=value.device,
        requires_grad=False,
    )
    zero = emitter.call(node, aten.full.default, [], 0, **like)
    hit = emitter.call(node, aten.eq.Tensor, index, numbers)
    return emitter.call(node, aten.where.self, hit, source, zero)


def _is_one_hot(node: Node) -> bool:
    if node.target not in (aten.scatter_add.default, aten.scatter.src):
        return False
    base, dim, index, source = node.args
    assert isinstance(index, Node)
    assert isinstance(source, Node)
    rank = len(shape_of(node))
    last: Any = dim
    return (
        is_zero(base)
        and positive_dim(last, rank) == rank - 1
        and all(same(shape_of(value)[-1], 1) for value in (index, source))
        and all(map(same, shape_of(index)[:-1], shape_of(node)[:-1]))
        and all(map(same, shape_of(source)[:-1], shape_of(node)[:-1]))
    )
