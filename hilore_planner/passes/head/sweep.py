"""Emits one sweep over row chunks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from hilore_planner.passes import compat
from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.recipes import operands
from hilore_planner.passes.head.shapes import shape_of
from hilore_planner.passes.head.site import (
    ChunkPass,
    ChunkRows,
    Exit,
    HeadSite,
    Operand,
    Recipe,
    Rows,
    Size,
)

aten = torch.ops.aten
Bound = int | Node


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``start`` to ``stop``; numbers, or nodes where the number of rows is symbolic."""

    start: Bound
    stop: Bound
    rows: Bound


def static_bounds(rows: int, chunks: int) -> tuple[tuple[int, int], ...]:
    """Equal chunks (but for the last) that cover ``rows``; never more than ``chunks``.

    Chunk lengths are multiples of 8 if ``rows`` is: tensor cores want aligned operands.
    """
    step = -(-rows // chunks)
    if rows % 8 == 0:
        step = -(-step // 8) * 8
    return tuple((start, min(start + step, rows)) for start in range(0, rows, step))


class Sweep:
    """One sweep of a head while it is emitted."""

    def __init__(
        self, emitter: Emitter, site: HeadSite, sweep: ChunkPass, value: Callable[[Node], Node]
    ) -> None:
        self.emitter = emitter
        self.site = site
        self.sweep = sweep
        self.value = value
        """What stands for a value computed before the sweep."""
        self._whole: dict[Operand, Bound] = {}
        self._inside = {step.node for step in sweep.steps}

    def run(self, chunks: int) -> dict[Node, Node]:
        """Emit everything; gives for each exit's original node the new one."""
        parts: dict[Node, list[Node]] = {leaving.node: [] for leaving in self.sweep.exits}
        for chunk in self._chunks(chunks):
            made: dict[Node, Node] = {}
            slices: dict[Operand, Node] = {}
            for step in self.sweep.steps:
                made[step.node] = self._step(step.node, step.recipe, chunk, made, slices, parts)
            for node in parts:
                parts[node].append(made[node])
        return {e.node: self._join(e, parts[e.node]) for e in self.sweep.exits}

    def _chunks(self, chunks: int) -> list[Chunk]:
        rows = self.site.rows
        if isinstance(rows, int):
            return [Chunk(a, b, b - a) for a, b in static_bounds(rows, chunks)]
        origin, call = self.site.logits, self.emitter.call
        total = self.emitter.size(rows)
        cuts: list[Bound] = [0]
        for index in range(1, chunks):
            scaled = call(origin, operator.mul, total, index)
            cuts.append(call(origin, operator.floordiv, scaled, chunks))
        cuts.append(total)
        return [
            Chunk(a, b, call(origin, operator.sub, b, a) if a != 0 else b)
            for a, b in pairwise(cuts)
        ]

    def _step(
        self,
        node: Node,
        made_by: Recipe,
        chunk: Chunk,
        made: dict[Node, Node],
        slices: dict[Operand, Node],
        parts: dict[Node, list[Node]],
    ) -> Node:
        def fill(leaf: Any) -> Any:
            if isinstance(leaf, Operand):
                if leaf.node in self._inside:
                    return made[leaf.node]
                return self._slice(leaf, chunk, slices)
            return chunk.rows if leaf is ChunkRows.SIZE else leaf

        if made_by.target is None:
            filled: Node = fill(operands(made_by)[0])
            return filled
        args, kwargs = map_aggregate(made_by.args, fill), map_aggregate(made_by.kwargs, fill)
        earlier = parts.get(node)
        if earlier and self._is_sum(node):
            return self._add(node, earlier, made_by.target, args, kwargs)
        return self.emitter.call(node, made_by.target, *args, **kwargs)

    def _is_sum(self, node: Node) -> bool:
        return any(leaving.node is node and leaving.kind == "sum" for leaving in self.sweep.exits)

    def _add(self, node: Node, earlier: list[Node], target: Any, args: Any, kwargs: Any) -> Node:
        """The running total with this chunk's part: one buffer, not one a chunk."""
        if target is aten.mm.default:
            return self.emitter.call(node, aten.addmm.default, earlier[-1], *args)
        part = self.emitter.call(node, target, *args, **kwargs)
        return self.emitter.call(node, aten.add.Tensor, earlier[-1], part)

    def _slice(self, operand: Operand, chunk: Chunk, slices: dict[Operand, Node]) -> Bound:
        if operand not in self._whole:
            self._whole[operand] = self._prepare(operand)
        whole = self._whole[operand]
        if operand.rows is None or (chunk.start == 0 and chunk.rows == self.site.rows):
            return whole
        if operand not in slices:
            slices[operand] = self.emitter.call(
                operand.node, aten.slice.Tensor, whole, operand.rows.axis, chunk.start, chunk.stop
            )
        return slices[operand]

    def _prepare(self, operand: Operand) -> Bound:
        """A value from before the sweep, with its rows in one dimension."""
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
        if rows.count == 1:
            return node
        dense = call(origin, aten.clone.default, node, memory_format=torch.contiguous_format)
        return call(origin, aten.view.default, dense, self._joined(dense, rows, self.site.rows))

    def _joined(self, node: Node, block: Rows, size: Size) -> list[Bound]:
        shape = shape_of(node)
        sizes = (*shape[: block.axis], size, *shape[block.axis + block.count :])
        return [self.emitter.size(own) for own in sizes]

    def _join(self, leaving: Exit, parts: list[Node]) -> Node:
        """The whole value of an exit."""
        node, rows, call = leaving.node, leaving.rows, self.emitter.call
        if rows is None:
            return parts[-1]
        whole = parts[0]
        if len(parts) > 1:
            whole = call(node, aten.cat.default, parts, rows.axis)
        if rows.count == 1:
            return whole
        sizes = [self.emitter.size(size) for size in shape_of(node)]
        return call(node, aten.view.default, whole, sizes)
