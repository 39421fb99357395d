"""Which data reaches which, and the values of vocabulary size around a head.

Symbolic sizes carry no data: a path through one does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch.fx import Graph, Node

from hilore_planner.passes import compat
from hilore_planner.passes.head.shapes import numel_hint

aten = torch.ops.aten
MATMULS = (aten.mm.default, aten.addmm.default)


def descendants(graph: Graph, sources: Collection[Node]) -> set[Node]:
    """All calls that read one of ``sources``, directly or not; the sources themselves only if they do."""
    found: set[Node] = set()
    for node in graph.nodes:
        reads = any(arg in found or arg in sources for arg in node.all_input_nodes)
        if reads and node.op == "call_function" and not compat.is_sym_node(node):
            found.add(node)
    return found


def ancestors(graph: Graph, sinks: Collection[Node]) -> set[Node]:
    """All nodes that one of ``sinks`` reads, directly or not."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in sinks or node in found:
            found.update(arg for arg in node.all_input_nodes if not compat.is_sym_node(arg))
    return found


def wide_values(logits: Node, elements: int) -> set[Node]:
    """The values of vocabulary size connected with ``logits`` without another matmul between.

    ``elements`` are those of the smallest such value, (N, V); little more than half of them count
    too, as a padded vocabulary may be sliced.
    """
    least = elements // 2 + 1
    wide, todo = {logits}, [logits]
    while todo:
        node = todo.pop()
        readers: Iterable[Node] = (user for user in node.users if user.target not in MATMULS)
        read = () if node.target in MATMULS else node.all_input_nodes
        for other in (*readers, *read):
            if other not in wide and numel_hint(other) >= least:
                wide.add(other)
                todo.append(other)
    return wide


def closing_values(wide: Collection[Node]) -> set[Node]:
    """The nodes that read vocabulary-sized values and yield smaller ones."""
    users = {user for node in wide for user in node.users}
    return {
        user
        for user in users
        if user not in wide and user.op == "call_function" and not compat.is_sym_node(user)
    }
