"""Loops over sequences as one operation on all of them.

Log-probabilities are often taken one sequence after another (``torch.stack([f(row) for row in logits])``), to save
memory where nothing is compiled. In a graph these are B lanes of the same operations, from ``select(x, 0, i)`` to a
``cat`` of all, and in backward to a sum of ``select_scatter(0, lane, 0, i)``. They are the same operations on ``x``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.linear import is_zero
from hilore_planner.passes.head.shapes import same, shape_of, tensor_of

aten = torch.ops.aten
Lanes = tuple[Node, ...]
"""What corresponds in each of the lanes, in their order."""

_DIMS_AT = {
    aten.amax.default: 1,
    aten.sum.dim_IntList: 1,
    aten.mean.dim: 1,
    aten.squeeze.dim: 1,
    aten.squeeze.dims: 1,
    aten.unsqueeze.default: 1,
    aten.gather.default: 1,
    aten._log_softmax.default: 1,
    aten._softmax.default: 1,
    aten._log_softmax_backward_data.default: 2,
    aten._softmax_backward_data.default: 2,
}
"""Ops along dimensions, and which argument says which."""


class LaneRoller:
    """Rolls the lanes of one graph; what several joins have in common is made once."""

    def __init__(self) -> None:
        self._made: dict[Lanes, Node] = {}

    def __call__(self, emitter: Emitter, node: Node) -> Node | None:
        """What stands for a join of lanes; None if ``node`` is none, or if the lanes are not alike."""
        lanes = _joined(node)
        whole = None if lanes is None else self._rolled(emitter, lanes)
        if whole is None or node.target is not aten.cat.default:
            return whole
        sizes = [emitter.size(size) for size in shape_of(node)]
        return emitter.call(node, aten.view.default, whole, sizes)

    def _rolled(self, emitter: Emitter, lanes: Lanes) -> Node | None:
        """The value (B, ...) of which each lane has its part; None if they are not alike."""
        if lanes not in self._made:
            made = _selected(lanes) or self._same_call(emitter, lanes)
            if made is None:
                return None
            self._made[lanes] = made
        return self._made[lanes]

    def _same_call(self, emitter: Emitter, lanes: Lanes) -> Node | None:
        first = lanes[0]
        is_pointwise = torch.Tag.pointwise in getattr(first.target, "tags", ())
        if any(lane.target != first.target or lane.op != "call_function" for lane in lanes):
            return None
        if not is_pointwise and first.target not in _DIMS_AT:
            return None
        if any(lane.kwargs != first.kwargs or len(lane.args) != len(first.args) for lane in lanes):
            return None
        args = [self._argument(emitter, lanes, index) for index in range(len(first.args))]
        if any(argument is NotImplemented for argument in args):
            return None
        if first.target in _DIMS_AT:
            place = _DIMS_AT[first.target]
            args[place] = _behind_lanes(args[place])
        position = max(emitter.position(lane) for lane in lanes)
        with emitter.after(position, emitter.side(first)):
            return emitter.call(first, first.target, *args, **first.kwargs)

    def _argument(self, emitter: Emitter, lanes: Lanes, index: int) -> Any:
        """An argument for all lanes; NotImplemented if there is none."""
        read = [lane.args[index] for lane in lanes]
        nodes = tuple(value for value in read if isinstance(value, Node))
        if not nodes:
            return read[0] if all(value == read[0] for value in read) else NotImplemented
        if len(nodes) < len(read):
            return NotImplemented
        if all(_is_constant(node, nodes[0]) for node in nodes):
            return nodes[0]  # broadcast over the lanes
        if len(shape_of(nodes[0])) != len(shape_of(lanes[0])) and lanes[0].target not in _DIMS_AT:
            return NotImplemented  # the lanes' dimension would not be in the same place
        rolled = self._rolled(emitter, nodes)
        return NotImplemented if rolled is None else rolled


def _joined(node: Node) -> Lanes | None:
    if node.target is aten.cat.default and (len(node.args) == 1 or node.args[1] == 0):
        parts: Any = node.args[0]
        return tuple(parts) if len(parts) > 1 else None
    is_last = node.target is aten.add.Tensor and not all(
        user.target is aten.add.Tensor and _scattered(user) for user in node.users
    )
    return _scattered(node) if is_last else None


def _scattered(node: Node) -> Lanes | None:
    """The lanes of a sum in which each is written to its own place among zeros."""
    lanes: dict[int, Node] = {}
    for term in _terms(node):
        if term.target is not aten.select_scatter.default or not is_zero(term.args[0]):
            return None
        _, lane, dim, index = term.args
        if dim != 0 or not isinstance(index, int) or index in lanes or not isinstance(lane, Node):
            return None
        lanes[index] = lane
    count = len(lanes)
    is_all = count > 1 and sorted(lanes) == list(range(count)) and same(shape_of(node)[0], count)
    return tuple(lanes[index] for index in range(count)) if is_all else None


def _terms(node: Node) -> Iterator[Node]:
    if node.target is aten.add.Tensor and len(node.all_input_nodes) == len(node.args) == 2:
        for term in node.all_input_nodes:
            yield from _terms(term)
    else:
        yield node


def _selected(lanes: Sequence[Node]) -> Node | None:
    """The value that the lanes select all parts of, in order."""
    source = lanes[0].args[0] if lanes[0].target is aten.select.int else None
    if not isinstance(source, Node) or not same(shape_of(source)[0], len(lanes)):
        return None
    expected = [(source, 0, index) for index in range(len(lanes))]
    is_all = all(lane.target is aten.select.int for lane in lanes)
    return source if is_all and [lane.args for lane in lanes] == expected else None


def _is_constant(node: Node, like: Node) -> bool:
    """Whether two nodes are one value, the same for every lane."""
    if node is like:
        return tensor_of(node) is not None
    alike = (node.target, node.args, node.kwargs) == (like.target, like.args, like.kwargs)
    return alike and not node.all_input_nodes


def _behind_lanes(dims: Any) -> Any:
    """Dimensions counted from the front, behind the new first one."""
    if isinstance(dims, int):
        return dims if dims < 0 else dims + 1
    return [dim if dim < 0 else dim + 1 for dim in dims]
