"""Emits one sweep over row chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from hilore_planner.head_plan import Totals
from hilore_planner.passes import compat
from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.one_hot import picks_one, sum_instead_of_gather
from hilore_planner.passes.head.operands import operands
from hilore_planner.passes.head.reach import MATMULS
from hilore_planner.passes.head.recipes import REDUCTIONS
from hilore_planner.passes.head.shapes import shape_of, tensor_of
from hilore_planner.passes.head.site import (
    ChunkPass,
    ChunkRows,
    Exit,
    HeadSite,
    Operand,
    Rows,
    Step,
    mark_chunk_of_logits,
)
from hilore_planner.passes.head.slices import Bound, Chunk, Slicer
from hilore_planner.passes.marks import PLACED

aten = torch.ops.aten
prims = torch.ops.prims


def emit_sweep(
    emitter: Emitter,
    site: HeadSite,
    sweep: ChunkPass,
    value: Callable[[Node], Node],
    chunks: int,
    totals: Totals,
) -> dict[Node, Node]:
    """Emit all chunks of a sweep; gives for each exit's original node the new one.

    ``value`` gives what stands for a value made before the sweep.
    """
    slicer = Slicer(emitter, site, value)
    parts: dict[Node, list[Node]] = {leaving.node: [] for leaving in sweep.exits}
    sums = {leaving.node for leaving in sweep.exits if leaving.kind == "sum"}
    wide = {node for node in sums if totals == "float32" and _is_half_product(node)}
    for chunk in slicer.chunks(chunks):
        so_far = {node: made[-1] for node, made in parts.items() if made and node in sums}
        made = _OneChunk(emitter, slicer, chunk, so_far, wide if not chunk.is_whole else set()).run(
            sweep.steps
        )
        _mark(site, sweep, made)
        for node, own in parts.items():
            own.append(made[node])
    return {
        leaving.node: _join(emitter, site, leaving, parts[leaving.node]) for leaving in sweep.exits
    }


def _mark(site: HeadSite, sweep: ChunkPass, made: Mapping[Node, Node]) -> None:
    """Say which nodes of a chunk are logits, and which must stay in their place.

    Products and what leaves must: a compiler is free to run the independent logits of all chunks first, and fusing the
    small kernels of several chunks does make it. So must a row's numbers that logits are combined with: worked out anew
    for every logit, they make that kernel so long that it no longer writes the logits' gradient over the logits.
    """
    leaving = {made[out.node] for out in sweep.exits}
    logits = {part for node, part in made.items() if node in site.wide}
    for part in logits:
        mark_chunk_of_logits(part)
    read = {
        made[o.node]
        for s in sweep.steps
        if made[s.node] in logits
        for o in operands(s.recipe)
        if o.node in made
    }
    products = {made[step.node] for step in sweep.steps if step.node.target in MATMULS}
    for part in leaving | products | (read - logits):
        if part.target not in REDUCTIONS:
            part.meta[PLACED] = True


def _is_half_product(node: Node) -> bool:
    value = tensor_of(node)
    is_half = value is not None and value.dtype in (torch.bfloat16, torch.float16)
    return is_half and node.target is aten.mm.default


def _is_single_of_half(node: Node, site: HeadSite) -> bool:
    """Whether a float32 value for each of half-precision logits: their rounding is far above that of ``exp2``.

    A device has an instruction for it, where ``exp`` takes ten.
    """
    value, logits = tensor_of(node), tensor_of(site.logits)
    assert value is not None
    assert logits is not None
    return node in site.wide and value.dtype is torch.float32 and logits.itemsize == 2


def _join(emitter: Emitter, site: HeadSite, leaving: Exit, parts: list[Node]) -> Node:
    """The whole value of an exit."""
    node, rows, whole = leaving.node, leaving.rows, parts[-1]
    if rows is not None and len(parts) > 1:
        whole = emitter.call(node, aten.cat.default, parts, rows.axis)
    if rows is not None and rows.domain == "all":
        whole = _with_dropped_rows(emitter, site, leaving.node, whole, rows)
    value, own = tensor_of(node), tensor_of(whole)
    assert value is not None
    assert own is not None
    if own.dtype != value.dtype:
        whole = emitter.call(node, prims.convert_element_type.default, whole, value.dtype)
    if len(shape_of(whole)) == len(shape_of(node)):
        return whole
    sizes = [emitter.size(size) for size in shape_of(node)]
    return emitter.call(node, aten.view.default, whole, sizes)


def _with_dropped_rows(
    emitter: Emitter, site: HeadSite, origin: Node, kept: Node, rows: Rows
) -> Node:
    """A gradient of kept rows, among the zeros of those that were sliced away."""
    cut, value = site.cut, tensor_of(kept)
    assert cut is not None
    assert value is not None
    before = [emitter.size(size) for size in shape_of(kept)[: rows.axis]]
    behind = [emitter.size(size) for size in shape_of(kept)[rows.axis + 1 :]]
    inside, lead = ([emitter.size(size) for size in sizes] for sizes in (cut.kept, cut.lead))
    split = emitter.call(origin, aten.view.default, kept, [*before, *inside, *behind])
    like = {"dtype": value.dtype, "device": value.device}
    zeros = emitter.call(origin, aten.full.default, [*before, *lead, *behind], 0, **like)
    dim, bounds = rows.axis + cut.dim, (cut.start, cut.stop)
    whole = emitter.call(origin, aten.slice_scatter.default, zeros, split, dim, *bounds)
    if rows.count == len(cut.lead):
        return whole
    sizes = [emitter.size(size) for size in shape_of(origin)]
    return emitter.call(origin, aten.view.default, whole, sizes)


class _OneChunk:
    """The steps of a sweep on one chunk."""

    def __init__(
        self,
        emitter: Emitter,
        slicer: Slicer,
        chunk: Chunk,
        totals: Mapping[Node, Node],
        wide: Set[Node],
    ) -> None:
        self.emitter = emitter
        self.slicer = slicer
        self.chunk = chunk
        self.totals = totals
        self.wide = wide
        self._made: dict[Node, Bound] = {}
        self._read: dict[Operand, Bound] = {}

    def run(self, steps: tuple[Step, ...]) -> dict[Node, Node]:
        """Emit the steps; gives the chunk's node for each original one."""
        made: dict[Node, Node] = {}
        for step in steps:
            made[step.node] = self._step(step)
            self._made[step.node] = made[step.node]
        return made

    def _step(self, step: Step) -> Node:
        node, recipe = step.node, step.recipe
        if recipe.target is None:
            (only,) = (self._get(operand) for operand in operands(recipe))
            assert isinstance(only, Node)
            return only
        args = map_aggregate(recipe.args, self._fill)
        kwargs = map_aggregate(recipe.kwargs, self._fill)
        if node.target is aten.exp.default and _is_single_of_half(node, self.slicer.site):
            scaled = self.emitter.call(node, aten.mul.Tensor, args[0], 1 / math.log(2))
            return self.emitter.call(node, aten.exp2.default, scaled)
        if picks_one(node):
            return sum_instead_of_gather(self.emitter, node, args[0], args[2])
        total = self.totals.get(node)
        if total is not None and recipe.target is aten.mm.default:
            return self.emitter.call(node, compat.added_mm(), total, *args)
        if node in self.wide:
            return self.emitter.call(node, compat.wide_mm(), *args)
        part = self.emitter.call(node, recipe.target, *args, **kwargs)
        if total is not None:
            return self.emitter.call(node, aten.add.Tensor, total, part)
        return part

    def _fill(self, leaf: Any) -> Any:
        if isinstance(leaf, Operand):
            return self._get(leaf)
        return self.chunk.rows if leaf is ChunkRows.SIZE else leaf

    def _get(self, operand: Operand) -> Bound:
        if operand.node in self._made:
            return self._made[operand.node]
        if operand not in self._read:
            self._read[operand] = self.slicer.part(operand, self.chunk)
        return self._read[operand]
