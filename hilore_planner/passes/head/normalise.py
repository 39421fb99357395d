"""Brings a head into the one form the analysis knows: a plain matmul of rows, targets compared."""

from __future__ import annotations

from torch.fx import GraphModule

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.lanes import LaneRoller
from hilore_planner.passes.head.one_hot import compare_instead_of_scatter
from hilore_planner.passes.head.order import sort_stably
from hilore_planner.passes.head.products import PlainProducts
from hilore_planner.passes.head.slice_chains import merge_slices


def normalise_head(gm: GraphModule) -> int:
    """Rewrite what :func:`plan_head` would not see through, in place; gives how many nodes.

    Numerics do not change. Dead code has to be gone before, and is after.
    """
    emitter = Emitter(gm.graph, set())
    rules = (merge_slices, compare_instead_of_scatter, PlainProducts(), LaneRoller())
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
