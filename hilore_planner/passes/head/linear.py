"""Whether a computation is linear in a tangent, so that the tangent may be multiplied in at the end.

Autograd's formulas are; what a user's hook or custom function does to a gradient need not be.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten
prims = torch.ops.prims

_JOINTLY: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            aten.neg.default,
            aten.view.default,
            aten.reshape.default,
            aten._unsafe_view.default,
            aten.expand.default,
            aten.unsqueeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.permute.default,
            aten.clone.default,
            aten.alias.default,
            aten.select.int,
            aten.slice.Tensor,
            aten.sum.default,
            aten.sum.dim_IntList,
            aten.mean.default,
            aten.mean.dim,
            aten.cumsum.default,
            aten.flip.default,
            aten.gather.default,
            aten.index.Tensor,
            aten.mul.Scalar,
            aten.div.Scalar,
            aten.div.Tensor,
            aten.tanh_backward.default,
            aten.sigmoid_backward.default,
            aten._log_softmax_backward_data.default,
            aten._softmax_backward_data.default,
            prims.convert_element_type.default,
        ),
        (0,),
    ),
    aten.add.Tensor: (0, 1),
    aten.sub.Tensor: (0, 1),
    aten.constant_pad_nd.default: (0, 2),
    aten.where.self: (1, 2),
    aten.scatter_add.default: (0, 3),
    aten.scatter.src: (0, 3),
    aten.select_scatter.default: (0, 1),
    aten.slice_scatter.default: (0, 1),
}
"""Ops that are linear in these arguments taken together: all of them depend on the tangent or are zero."""

_EITHER: dict[Any, tuple[int, int]] = {
    aten.mul.Tensor: (0, 1),
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
}
"""Ops that are linear in either argument: only one of them depends on the tangent."""

_ZERO_FILLS: dict[Any, int] = {aten.full.default: 1, aten.scalar_tensor.default: 0}


def first_nonlinear(nodes: Collection[Node], dependent: Collection[Node]) -> Node | None:
    """The first of ``nodes`` that may not be linear in what ``dependent`` nodes carry."""
    return next((node for node in nodes if not _is_linear(node, dependent)), None)


def is_zero(value: Any) -> bool:
    """Whether an argument is zero for sure."""
    if isinstance(value, Node):
        index = _ZERO_FILLS.get(value.target)
        return index is not None and bool(value.args[index] == 0)
    return isinstance(value, int | float) and value == 0


def _is_linear(node: Node, dependent: Collection[Node]) -> bool:
    carriers = {index for index, arg in enumerate(node.args) if arg in dependent}
    if sum(arg in dependent for arg in node.all_input_nodes) > len(carriers):
        return False  # a carrier hides in a list or a keyword
    if node.target in _EITHER:
        return len(carriers) == 1
    jointly = _JOINTLY.get(node.target)
    if jointly is None or not carriers <= set(jointly):
        return False
    written = [index for index in jointly if index < len(node.args)]
    return all(index in carriers or is_zero(node.args[index]) for index in written)
