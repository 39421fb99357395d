"""Slices of slices, and their backward, as one: logits are often cut at one end and then at the other."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.operands import value_args
from hilore_planner.passes.head.shapes import positive_dim, shape_of

aten = torch.ops.aten
Range = tuple[int, int, int]
"""Dimension, start, stop."""


def merge_slices(emitter: Emitter, node: Node) -> Node | None:
    """What stands for a slice of a slice, or for a scatter of a scatter into zeros.

    None if ``node`` is neither, if their dimensions differ, or if sizes are symbolic.
    """
    if node.target is aten.slice.Tensor:
        (cut,) = value_args(node, 0)
        if cut.target is aten.slice.Tensor:
            (whole,) = value_args(cut, 0)
            both = _combined(_range(cut.args[1:], whole), _range(node.args[1:], cut))
            return None if both is None else emitter.call(node, node.target, whole, *both)
    if node.target is aten.slice_scatter.default:
        zeros, cut = value_args(node, 0, 1)
        if cut.target is aten.slice_scatter.default and is_zero(zeros) and is_zero(cut.args[0]):
            both = _combined(_range(node.args[2:], node), _range(cut.args[2:], cut))
            return (
                None if both is None else emitter.call(node, node.target, zeros, cut.args[1], *both)
            )
    return None


def _combined(outer: Range | None, inner: Range | None) -> Range | None:
    """The part ``inner`` of the part ``outer``."""
    if outer is None or inner is None or outer[0] != inner[0]:
        return None
    return outer[0], outer[1] + inner[1], outer[1] + inner[2]


def _range(bounds: tuple[Any, ...], whole: Node) -> Range | None:
    """What a slice takes of ``whole``; None if it has a step or is not known in numbers."""
    defaults: tuple[Any, ...] = (0, None, None, 1)
    dim, start, stop, step = bounds + defaults[len(bounds) :]
    place = positive_dim(dim, len(shape_of(whole)))
    size = shape_of(whole)[place]
    if step != 1 or not isinstance(size, int) or isinstance(start, Node) or isinstance(stop, Node):
        return None
    first, last, _ = slice(start, stop).indices(size)
    return place, first, max(first, last)
