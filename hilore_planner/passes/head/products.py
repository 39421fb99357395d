"""Products brought into one form: plain ones of rows, without padding that hides how many rows there are.

Inductor pads every dimension of a product that does not fit the device's memory accesses, if that is faster. What it
gains is that lines of memory begin where they should. That takes the dimension along which an operand or the product
lies in memory, such as an odd vocabulary. Tokens are no such dimension, and their padding goes away.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.operands import value_args
from hilore_planner.passes.head.reach import MATMULS
from hilore_planner.passes.head.shapes import same, shape_of, tensor_of
from hilore_planner.passes.marks import PLACED

aten = torch.ops.aten
Widths = tuple[int, int]
"""Zeros below the rows of a matrix, and right of its columns."""
_NONE = (0, 0)


class PlainProducts:
    """Rewrites the products of one graph; what is padded still is so once, for all that read it."""

    def __init__(self) -> None:
        self._made: dict[tuple[Node, Widths], Node] = {}

    def __call__(self, emitter: Emitter, node: Node) -> Node | None:
        """What stands for a product, or for the rows cut off a padded one; None if ``node`` may stay."""
        if node.target in MATMULS:
            return self._trimmed(emitter, node)
        if node.target is aten.bmm.default:
            (left,) = value_args(node, 0)
            (rows, _), _ = _split(left)
            return None if rows else self._unbatched(emitter, node, node)
        return self._cut(emitter, node) if node.target is aten.slice.Tensor else None

    def _trimmed(self, emitter: Emitter, node: Node) -> Node | None:
        """A product without an inner padding that lies in memory in neither operand."""
        *before, left, right = node.args
        (rows, inner), bare = _split(left)
        (_, columns), bare_right = _split(right)
        if bare is left and bare_right is right:
            return None
        if not (_lies_along(bare, 1) or _lies_along(bare_right, 0)):
            inner = 0
        operands = (
            self._padded(emitter, node, bare, (rows, inner)),
            self._padded(emitter, node, bare_right, (inner, columns)),
        )
        return emitter.call(node, node.target, *before, *operands, **node.kwargs)

    def _cut(self, emitter: Emitter, node: Node) -> Node | None:
        """A product of as many rows as are left of it, where the others were padded and do not lie in memory."""
        (product,) = value_args(node, 0)
        dim = len(shape_of(product)) - 2
        is_product = product.target in (*MATMULS, aten.bmm.default) and len(product.users) == 1
        if not is_product or node.args[1] != dim:
            return None
        *before, left, right = product.args
        (rows, inner), bare = _split(left)
        if not rows or _lies_along(bare, dim) or not same(shape_of(node)[dim], shape_of(bare)[dim]):
            return None
        if product.target is aten.bmm.default:
            return self._unbatched(emitter, node, product)
        operand = self._padded(emitter, node, bare, (0, inner))
        return emitter.call(node, product.target, *before, operand, right, **product.kwargs)

    def _unbatched(self, emitter: Emitter, node: Node, product: Node) -> Node | None:
        """A batched product with one matrix for all: ``matmul`` makes it where a weight is frozen."""
        left, right = product.args
        (_, inner), bare = _split(left)
        (_, columns), bare_right = _split(right)
        matrix = tensor_of(bare_right)
        if matrix is None or not (same(matrix.stride(0), 0) or same(matrix.shape[0], 1)):
            return None
        last = emitter.size(shape_of(bare)[-1])
        dense = emitter.call(node, aten.clone.default, bare, memory_format=torch.contiguous_format)
        rows = emitter.call(node, aten.view.default, dense, [-1, last])
        one = emitter.call(node, aten.select.int, bare_right, 0, 0)
        operands = (
            self._padded(emitter, node, rows, (0, inner)),
            self._padded(emitter, node, one, (inner, columns)),
        )
        plain = emitter.call(node, aten.mm.default, *operands)
        sizes = [emitter.size(size) for size in (*shape_of(bare)[:-1], shape_of(product)[-1])]
        return emitter.call(node, aten.view.default, plain, sizes)

    def _padded(self, emitter: Emitter, origin: Node, bare: Node, widths: Widths) -> Node:
        """A padded matrix; a transposed one is a transposition of the padded original, which others read too."""
        if widths == _NONE:
            return bare
        if bare.target is aten.permute.default:
            (straight,) = value_args(bare, 0)
            made = self._padded(emitter, origin, straight, widths[::-1])
            return emitter.call(origin, aten.permute.default, made, [1, 0])
        if (bare, widths) not in self._made:
            rows, columns = widths
            made = emitter.call(origin, aten.constant_pad_nd.default, bare, [0, columns, 0, rows])
            made.meta[PLACED] = True  # or every transposition of it would be written out too
            self._made[bare, widths] = made
        return self._made[bare, widths]


def _split(operand: Any) -> tuple[Widths, Node]:
    """How the matrices of an operand are padded with zeros, and the operand without."""
    assert isinstance(operand, Node)
    if operand.target is not aten.constant_pad_nd.default or not all(
        map(is_zero, operand.args[2:])
    ):
        return _NONE, operand
    (bare,) = value_args(operand, 0)
    written: Any = operand.args[1]
    padding: tuple[int, ...] = (*written, 0, 0, 0, 0)
    left, columns, above, rows = padding[:4]
    is_behind = not (left or above or any(padding[4:]))
    return ((rows, columns), bare) if is_behind else (_NONE, operand)


def _lies_along(matrix: Node, dim: int) -> bool:
    """Whether neighbours along a dimension are neighbours in memory."""
    value = tensor_of(matrix)
    return value is None or same(value.stride(dim), 1)
