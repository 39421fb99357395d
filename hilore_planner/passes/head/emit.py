"""Adds nodes to a graph: each with a fake value, its side of the joint graph, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from hilore_planner.passes import compat
from hilore_planner.passes.head.shapes import same, shape_of
from hilore_planner.passes.head.site import Size

Side = Literal["is_forward", "is_backward"]
Place = tuple[int, int]
"""Where a node belongs: position of an original node, and how many-th after it (0: itself)."""

_NOT_INHERITED = ("val", "tensor_meta", "recompute", "ac_graph_id", "must_be_in_forward")


class Emitter:
    """Adds nodes to a joint graph and remembers where in program order they belong.

    ``replaced`` are nodes that will go, so that nothing new may read them.
    """

    def __init__(self, graph: Graph, replaced: Set[Node]) -> None:
        self.graph = graph
        self._forward_end = compat.forward_region_end(list(graph.nodes))
        self.places: dict[Node, Place] = {node: (i, 0) for i, node in enumerate(graph.nodes)}
        self._found_sizes: dict[str, Node] = {}
        self._output = next(iter(reversed(graph.nodes)))
        self._sized: list[Node] = [
            node
            for node in graph.nodes
            if self.in_forward(node) and replaced.isdisjoint((node, *node.all_input_nodes))
        ]
        self._mode = _fake_mode(graph)
        self._after = 0
        self._side: Side = "is_forward"

    @property
    def added(self) -> list[Node]:
        """The nodes added so far."""
        return [node for node, (_, later) in self.places.items() if later]

    @contextmanager
    def after(self, position: int, side: Side) -> Iterator[None]:
        """Nodes added meanwhile belong behind the original node at ``position``, on ``side``."""
        before = self._after, self._side
        self._after, self._side = position, side
        yield
        self._after, self._side = before

    def in_forward(self, node: Node) -> bool:
        """Whether a node is on the forward side; one without a tag is where the joint pass put it."""
        tag = node.meta.get("partitioner_tag")
        return tag == "is_forward" or (tag is None and self.position(node) <= self._forward_end)

    def side(self, node: Node) -> Side:
        """The side a node is on."""
        return "is_forward" if self.in_forward(node) else "is_backward"

    def position(self, node: Node) -> int:
        """Position of a node, or of the original node it was put behind."""
        return self.places[node][0]

    def call(self, origin: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add one operation that stands in for (a part of) ``origin``."""
        with self.graph.inserting_before(self._output):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {k: v for k, v in origin.meta.items() if k not in _NOT_INHERITED}
        with self._mode:
            node.meta["val"] = target(*_values(args), **_values(kwargs))
        node.meta["partitioner_tag"] = self._side
        self.places[node] = (self._after, len(self.places))
        return node

    def size(self, size: Size) -> int | Node:
        """A size as an argument; a symbolic one is read off a forward value that has it."""
        if isinstance(size, int):
            return size
        if str(size) not in self._found_sizes:
            self._found_sizes[str(size)] = self._find_size(size)
        return self._found_sizes[str(size)]

    def _find_size(self, size: torch.SymInt) -> Node:
        for node in self._sized:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and same(value, size):
                return node
            for dim, own in enumerate(shape_of(node)):
                if same(own, size):
                    with self.after(self.position(node), "is_forward"):
                        return self.call(node, torch.ops.aten.sym_size.int, node, dim)
        raise ValueError(f"no forward value has a dimension of {size}")


def _values(arguments: Any) -> Any:
    return map_aggregate(
        arguments, lambda leaf: leaf.meta["val"] if isinstance(leaf, Node) else leaf
    )


def _fake_mode(graph: Graph) -> FakeTensorMode:
    for node in graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if isinstance(mode, FakeTensorMode):
            return mode
    raise ValueError("the graph holds no fake tensor")
