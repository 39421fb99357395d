"""Masks that backward takes of forward values, as values of the forward.

The backward of ReLU, of clamping and their like compares a value of the forward with a number. Moved to where the value
is made, the mask is a unit of its own: it can be kept in bits instead of the value, and making it again from a value of
less precision is charged for what it is: an element on the wrong side of the number has a wholly wrong gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

aten = torch.ops.aten
COMPARISONS = frozenset(
    {
        aten.le.Scalar,
        aten.lt.Scalar,
        aten.ge.Scalar,
        aten.gt.Scalar,
        aten.eq.Scalar,
        aten.ne.Scalar,
    }
)
_ATTRIBUTION = ("nn_module_stack", "stack_trace")


def hoist_masks(forward: Sequence[Node], backward: Sequence[Node]) -> bool:
    """Move comparisons of forward values from backward to right behind the values; returns whether there were any."""
    values = {node for node in forward if node.op == "call_function"}
    masks = [n for n in backward if n.target in COMPARISONS and n.args[0] in values]
    for mask in masks:
        value = mask.args[0]
        assert isinstance(value, Node)
        value.append(mask)
        mask.meta["partitioner_tag"] = "is_forward"
        mask.meta |= {key: value.meta[key] for key in _ATTRIBUTION if key in value.meta}
    return bool(masks)
