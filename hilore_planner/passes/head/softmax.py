"""The normaliser of a softmax in one pass over logits.

``logsumexp`` subtracts the row's maximum, but zero where that is infinite. Compilers that sum and look for the maximum
at once do so for ``exp(x - amax(x)).sum()`` only.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.operands import value_args

aten = torch.ops.aten


def subtract_maximum(emitter: Emitter, node: Node) -> Node | None:
    """What stands for ``exp(x - m).sum()``, m the maximum or zero where that is infinite; None if ``node`` is none.

    Where the maximum is infinite, its own exponential stands for the sum: the logarithm is the same.
    """
    found = _guarded(node)
    if found is None:
        return None
    logits, is_infinite, maximum = found
    gap = emitter.call(node, aten.sub.Tensor, logits, maximum)
    powers = emitter.call(node, aten.exp.default, gap)
    total = emitter.call(node, aten.sum.dim_IntList, powers, node.args[1], True)
    edge = emitter.call(node, aten.exp.default, maximum)
    either = emitter.call(node, aten.where.self, is_infinite, edge, total)
    if len(node.args) > 2 and node.args[2]:
        return either
    return emitter.call(node, aten.squeeze.dims, either, node.args[1])


def _guarded(node: Node) -> tuple[Node, Node, Node] | None:
    """Of such a sum: the logits, whether a row's maximum is infinite, and the maximum."""
    if node.target is not aten.sum.dim_IntList or len(node.args) > 3 or node.kwargs:
        return None
    (powers,) = value_args(node, 0)
    if powers.target is not aten.exp.default or len(powers.users) > 1:
        return None
    (gap,) = value_args(powers, 0)
    if gap.target is not aten.sub.Tensor or len(gap.users) > 1 or gap.kwargs:
        return None
    logits, guarded = gap.args
    if not isinstance(guarded, Node) or guarded.target is not aten.where.self:
        return None
    is_infinite, zero, maximum = guarded.args
    assert isinstance(logits, Node)
    assert isinstance(is_infinite, Node)
    assert isinstance(maximum, Node)
    is_maximum = maximum.target is aten.amax.default and maximum.args == (
        logits,
        node.args[1],
        True,
    )
    if is_zero(zero) and is_maximum and _asks_if_infinite(is_infinite, maximum):
        return logits, is_infinite, maximum
    return None


def _asks_if_infinite(node: Node, value: Node) -> bool:
    if node.target is not aten.eq.Scalar or node.args[1] != math.inf:
        return False
    (size,) = value_args(node, 0)
    return size.target is aten.abs.default and size.args == (value,)
