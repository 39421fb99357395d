"""Sigmoids of half-precision values by powers of two, which a GPU has an instruction for.

Inductor makes ``silu(x)`` of ``exp(-x)``, for which a kernel takes some fifteen steps, as float32 has to be right to
its last bit. A power of two takes five. Kernels that make a gated product and encode two copies on the way are bound by
their steps, not by what they read and write.
"""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.ops import tensor

aten, prims = torch.ops.aten, torch.ops.prims
_HALF = frozenset({torch.bfloat16, torch.float16})


def write_powers(gm: GraphModule) -> int:
    """Have ``1 + exp(-x)`` of half-precision ``x`` on a GPU made of a power of two, in place; returns how many.

    In float32 that is up to |x| 2^-24 off, 5e-6 where the largest sum is finite: a hundredth of fp16's last bit, which
    what is made of it is rounded to. Where Inductor is to round like eager execution, nothing is changed.
    """
    if compat.rounds_like_eager():
        return 0
    found = [(node, x) for node in gm.graph.nodes if (x := _of_sigmoid(node)) is not None]
    for node, x in found:
        _write_power(gm.graph, node, x)
    if found:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return len(found)


def _of_sigmoid(node: Node) -> Node | None:
    """X, float32, if it is the exponential of a negated half-precision x, and only one is added to it."""
    value, negative = tensor(node), node.args[0] if node.args else None
    if node.target is not aten.exp.default or value is None or value.device.type != "cuda":
        return None
    if not isinstance(negative, Node) or negative.target is not aten.neg.default:
        return None
    x = negative.args[0]
    return x if isinstance(x, Node) and _was_half(x) and all(map(_adds_one, node.users)) else None


def _was_half(x: Node) -> bool:
    """Whether it is float32 of what was of half precision before."""
    if x.target is not prims.convert_element_type.default or x.args[1] != torch.float32:
        return False
    before = tensor(x.args[0]) if isinstance(x.args[0], Node) else None
    return before is not None and before.dtype in _HALF


def _adds_one(user: Node) -> bool:
    return user.target is aten.add.Tensor and user.args[1:] == (1,) and not user.kwargs


def _write_power(graph: torch.fx.Graph, node: Node, x: Node) -> None:
    with graph.inserting_before(node):
        exponent = graph.call_function(aten.mul.Tensor, (x, -math.log2(math.e)))
        power = graph.call_function(aten.exp2.default, (exponent,))
    exponent.meta, power.meta = dict(node.meta), dict(node.meta)
    node.replace_all_uses_with(power)
