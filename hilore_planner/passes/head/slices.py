"""Where chunks begin and end, and the part of a whole value that one chunk reads."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

import torch
from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.shapes import shape_of
from hilore_planner.passes.head.site import HeadSite, Operand, Rows, Size

aten = torch.ops.aten
Bound = int | Node

_TILE = 128
_LONG = 1024
"""Rows of a chunk of which a tile more or less is little."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``start`` to ``stop``; numbers, or nodes where the number of rows is symbolic."""

    start: Bound
    stop: Bound
    rows: Bound
    is_whole: bool


def static_bounds(rows: int, chunks: int) -> tuple[tuple[int, int], ...]:
    """Equal chunks (but for the last) that cover ``rows``; never more than ``chunks``.

    Long chunks are multiples of 128 rows: products are worked out in tiles of that. Short ones are multiples of 8 if
    ``rows`` is: tensor cores want aligned operands.
    """
    step = -(-rows // chunks)
    if step >= _LONG:
        step = -(-step // _TILE) * _TILE
    elif rows % 8 == 0:
        step = -(-step // 8) * 8
    return tuple((start, min(start + step, rows)) for start in range(0, rows, step))


def longest_chunk(rows: Size, chunks: int) -> int:
    """Rows of the longest of so many chunks, at the traced sizes."""
    if isinstance(rows, int):
        return static_bounds(rows, chunks)[0][1]
    return -(-compat.hint(rows) // chunks)


class Slicer:
    """Cuts values made before a sweep; ``value`` gives what stands for them now."""

    def __init__(self, emitter: Emitter, site: HeadSite, value: Callable[[Node], Node]) -> None:
        self.emitter = emitter
        self.site = site
        self.value = value
        self._whole: dict[Operand, Bound] = {}

    def chunks(self, number: int) -> list[Chunk]:
        """At most ``number`` chunks; a symbolic number of rows is guarded to suffice for them."""
        rows = self.site.rows
        if isinstance(rows, int):
            return [Chunk(a, b, b - a, b - a == rows) for a, b in static_bounds(rows, number)]
        number = min(number, compat.hint(rows))
        if not rows >= number:
            raise AssertionError(f"{rows} >= {number} holds for the sizes traced")
        origin, call = self.site.logits, self.emitter.call
        cuts: list[Bound] = [0]
        for index in range(1, number):
            scaled = call(origin, operator.mul, self._total, index)
            cuts.append(call(origin, operator.floordiv, scaled, number))
        return [
            Chunk(a, b, b if a == 0 else call(origin, operator.sub, b, a), number == 1)
            for a, b in pairwise([*cuts, self._total])
        ]

    @cached_property
    def _total(self) -> Bound:
        """The number of rows kept, as an argument."""
        if self.site.cut is None or isinstance(self.site.rows, int):
            return self.emitter.size(self.site.rows)
        sizes = [self.emitter.size(size) for size in self.site.cut.kept]
        return reduce(lambda a, b: self.emitter.call(self.site.logits, operator.mul, a, b), sizes)

    def part(self, operand: Operand, chunk: Chunk) -> Bound:
        """What ``chunk`` reads of a value."""
        if operand not in self._whole:
            self._whole[operand] = self._prepare(operand)
        whole = self._whole[operand]
        if operand.rows is None or not isinstance(whole, Node):
            return whole
        if chunk.is_whole:
            return whole
        return self.emitter.call(
            operand.node, aten.slice.Tensor, whole, operand.rows.axis, chunk.start, chunk.stop
        )

    def _prepare(self, operand: Operand) -> Bound:
        """The whole value, with its rows in one dimension."""
        if compat.is_sym_node(operand.node):
            return self.emitter.size(operand.node.meta["val"])
        node, origin, call = self.value(operand.node), operand.node, self.emitter.call
        if operand.merged is not None:
            return call(origin, aten.view.default, node, self._joined(node, operand.merged, 1))
        rows = operand.rows
        if rows is None:
            return node
        if operand.spread:
            sizes = [self.emitter.size(size) for size in operand.spread]
            node = call(origin, aten.expand.default, node, sizes)
        if rows.domain == "all":
            node, rows = self._kept(operand.node, node, rows)
        elif rows.count == 1:
            return node
        dense = call(origin, aten.clone.default, node, memory_format=torch.contiguous_format)
        return call(origin, aten.view.default, dense, self._joined(dense, rows, self._total))

    def _kept(self, origin: Node, node: Node, rows: Rows) -> tuple[Node, Rows]:
        """Only the rows that are kept, of a value that has all; its rows lie as in the slice."""
        cut = self.site.cut
        assert cut is not None
        shape = shape_of(node)
        split = (*shape[: rows.axis], *cut.lead, *shape[rows.axis + rows.count :])
        if rows.count != len(cut.lead):
            sizes = [self.emitter.size(size) for size in split]
            node = self.emitter.call(origin, aten.view.default, node, sizes)
        dim, bounds = rows.axis + cut.dim, (cut.start, cut.stop)
        kept = self.emitter.call(origin, aten.slice.Tensor, node, dim, *bounds)
        return kept, replace(rows, count=len(cut.lead))

    def _joined(self, node: Node, block: Rows, size: Bound) -> list[Bound]:
        before = [self.emitter.size(own) for own in shape_of(node)[: block.axis]]
        behind = [self.emitter.size(own) for own in shape_of(node)[block.axis + block.count :]]
        return [*before, size, *behind]
