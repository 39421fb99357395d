"""Scattering one value a row into zeros, as a comparison that fuses.

``gather``'s backward writes zeros of vocabulary size and scatters into them: two passes over memory
that no compiler fuses. With one index a row it is ``where(index == arange(V), value, 0)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.shapes import positive_dim, same, shape_of, tensor_of

aten = torch.ops.aten
prims = torch.ops.prims


def compare_instead_of_scatter(emitter: Emitter, node: Node) -> Node | None:
    """What stands for such a scatter over the last dimension; None if ``node`` is none."""
    return _comparison(emitter, node) if _is_one_hot(node) else None


def _comparison(emitter: Emitter, node: Node) -> Node:
    index, source = node.args[2:4]
    value = tensor_of(node)
    assert value is not None
    like = {"dtype": value.dtype, "device": value.device}
    numbers = emitter.call(
        node,
        prims.iota.default,
        emitter.size(shape_of(node)[-1]),
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
