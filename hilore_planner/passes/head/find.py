"""Finds the matmul of a language-model head, and what belongs to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from hilore_planner.passes import compat
from hilore_planner.passes.head.cut import row_slice
from hilore_planner.passes.head.reach import (
    MATMULS,
    ancestors,
    closing_values,
    descendants,
    wide_values,
)
from hilore_planner.passes.head.shapes import numel_hint, product, shape_of
from hilore_planner.passes.head.site import HEAD_MARK, Domain, RowSlice, Size

aten = torch.ops.aten
_PICKS = (aten.gather.default, aten.amax.default)
"""What tells a head from any other matmul: a target is picked, or a softmax taken, along the vocabulary."""


@dataclass(frozen=True, slots=True)
class Head:
    """Node sets around one head's matmul."""

    graph: Graph
    order: tuple[Node, ...]
    logits: Node
    cut: RowSlice | None
    wide: frozenset[Node]
    """Values of vocabulary size."""
    closing: frozenset[Node]
    """Smaller values that read wide ones."""
    tangents: tuple[Node, ...]
    dependent: frozenset[Node]
    """What reads a tangent, directly or not."""

    @property
    def rows(self) -> Mapping[Domain, Size]:
        """Number of rows; of all and of those kept, if some are cut off."""
        all_rows = shape_of(self.logits)[0]
        if self.cut is None:
            return {"kept": all_rows}
        return {"kept": product(self.cut.kept), "all": all_rows}

    @property
    def hidden(self) -> Size:
        """The size of hidden states."""
        return shape_of(_left(self.logits))[1]

    def between(self, sources: Collection[Node], sinks: Collection[Node]) -> set[Node]:
        """Smaller values on the way from some vocabulary-sized values to others."""
        return (descendants(self.graph, sources) & ancestors(self.graph, sinks)) - self.wide


def find_head(graph: Graph) -> Head | None:
    """The head of the most logits in a joint graph, if it has any.

    Raises:
        NotRowWiseError: its logits are sliced by rows in several ways.
    """
    tangents = tuple(n for n in graph.nodes if n.op == "placeholder" and compat.is_tangent(n))
    dependent = frozenset(descendants(graph, tangents))
    matmuls = [node for node in graph.nodes if node.target in MATMULS and node not in dependent]
    for node in sorted(filter(_may_be_head, matmuls), key=numel_hint, reverse=True):
        wide = wide_values(node, numel_hint(node))
        sliced = row_slice(wide, node)
        if sliced is not None:
            wide = wide_values(node, numel_hint(sliced[0]))
        if any(user.target in _PICKS for value in wide for user in value.users):
            return Head(
                graph=graph,
                order=tuple(graph.nodes),
                logits=node,
                cut=None if sliced is None else sliced[1],
                wide=frozenset(wide),
                closing=frozenset(closing_values(wide)),
                tangents=tangents,
                dependent=dependent,
            )
    return None


def _may_be_head(node: Node) -> bool:
    """Whether a matmul makes rows wider, as a vocabulary is larger than a hidden size, and is not cut yet."""
    return HEAD_MARK not in node.meta and compat.hint(shape_of(node)[1]) > compat.hint(
        shape_of(_left(node))[1]
    )


def _left(matmul: Node) -> Node:
    left = matmul.args[-2]
    assert isinstance(left, Node)
    return left
