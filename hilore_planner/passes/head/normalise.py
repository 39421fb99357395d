"""Brings a head into the one form the analysis knows: a plain matmul of rows, targets compared."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.lanes import LaneRoller
from hilore_planner.passes.head.one_hot import compare_instead_of_scatter
from hilore_planner.passes.head.order import sort_stably
from hilore_planner.passes.head.shapes import same, shape_of, tensor_of
from hilore_planner.passes.head.slice_chains import merge_slices
from hilore_planner.passes.head.softmax import subtract_maximum

aten = torch.ops.aten


def normalise_head(gm: GraphModule) -> int:
    """Rewrite what :func:`plan_head` would not see through, in place; gives how many nodes.

    Numerics do not change. Dead code has to be gone before, and is after.
    """
    emitter = Emitter(gm.graph, set())
    rules = (merge_slices, compare_instead_of_scatter, subtract_maximum, _unbatch, LaneRoller())
    changed = 0
    for node in list(gm.graph.nodes):
        with emitter.after(emitter.position(node), emitter.side(node)):
            made = next((new for rule in rules if (new := rule(emitter, node)) is not None), None)
        if made is not None:
            node.replace_all_uses_with(made, propagate_meta=False)
            changed += 1
    sort_stably(gm.graph, emitter.places)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return changed


def _unbatch(emitter: Emitter, node: Node) -> Node | None:
    """A batched product with one matrix for all: ``matmul`` makes it where a weight is frozen."""
    if node.target is not aten.bmm.default:
        return None
    left, right = node.args
    assert isinstance(left, Node)
    assert isinstance(right, Node)
    matrix = tensor_of(right)
    if matrix is None or not (same(matrix.stride(0), 0) or same(matrix.shape[0], 1)):
        return None
    inner = emitter.size(shape_of(left)[-1])
    dense = emitter.call(node, aten.clone.default, left, memory_format=torch.contiguous_format)
    rows = emitter.call(node, aten.view.default, dense, [-1, inner])
    one = emitter.call(node, aten.select.int, right, 0, 0)
    product = emitter.call(node, aten.mm.default, rows, one)
    return emitter.call(
        node, aten.view.default, product, [emitter.size(size) for size in shape_of(node)]
    )
