"""What Inductor does to a joint graph on a GPU only, done to one that was traced without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes.ops import tensor
from hilore_planner.passes.schedule import ON_GPU

aten = torch.ops.aten


def as_on_gpu(gm: GraphModule) -> None:
    """Make a graph traced on the CPU what a GPU's would be, in place; also for all that asks where it runs."""
    gm.meta[ON_GPU] = True
    single_products(gm)


def single_products(gm: GraphModule) -> None:
    """Make every batched product of one pair of matrices a plain one, in place.

    Source: ``bmm_to_mm`` in ``torch/_inductor/fx_passes/joint_graph.py``, which leaves graphs of the CPU alone.
    """
    for node in gm.graph.find_nodes(op="call_function", target=aten.bmm.default):
        left, right = node.args
        value = tensor(node)
        if value is None or value.shape[0] != 1:
            continue
        with gm.graph.inserting_before(node):
            pair = [_call(node, aten.squeeze.dim, side, 0) for side in (left, right)]
            product = _call(node, aten.mm.default, *pair)
            node.replace_all_uses_with(_call(node, aten.unsqueeze.default, product, 0))
        gm.graph.erase_node(node)


def _call(place: Node, target: Callable[..., Any], *args: Any) -> Node:
    """A call in the place of another node, with a fake value."""
    made = place.graph.call_function(target, args)
    made.meta = dict(place.meta)
    made.meta["val"] = target(*torch.fx.map_arg(args, lambda arg: arg.meta["val"]))
    return made
