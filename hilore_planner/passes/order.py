"""Keep a graph in the order it was planned in.

The plan counts what is alive step by step, so the steps must stay where they are. Extraction puts a rebuilt value right
before its first reader, but Inductor, which fuses kernels that read the same input, may pull it (or any other fusible
work) up to a kernel far earlier, and moves a product whose result is added to something later down to that addition.
Each kernel of its own is therefore tied to the one before it, and each written-out fusible value to the last before it.
A tie orders kernels; it moves no data. Where memory is plentiful nothing is tied: fusion across steps saves time.
"""

from __future__ import annotations

from collections.abc import Container

from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.ops import OpKind, kind_of, tensor

MADE = "hilore_made"
"""Metadata key of nodes that rewriting made: rebuilt values, encoding, decoding."""


def keep_order(gm: GraphModule, crowded: Container[str]) -> int:
    """Tie the written-out values of a graph to their place, in place; returns how many.

    ``crowded`` names nodes of the joint graph where memory is short; a node made since (a rebuilt value) counts with
    the next node of the joint graph, which reads it.
    """
    kinds = {n: kind_of(n) for n in gm.graph.nodes if n.op == "call_function"}
    steps, is_crowded = _steps(kinds), _is_crowded(kinds, crowded)
    anchor: Node | None = None
    tied_op: object = None
    ties: list[tuple[Node, Node]] = []
    for node, kind in kinds.items():
        if tensor(node) is None:
            continue
        if compat.is_getitem(node) and node.args[0] is tied_op:
            continue  # the op's first output has tied it
        is_kernel = compat.is_getitem(node) or kind is OpKind.EXTERN
        if (
            anchor is not None
            and is_crowded[node]
            and (is_kernel or (kind is OpKind.FUSIBLE and _is_written_out(node, kinds, steps)))
        ):
            ties.append((node, anchor))
        if is_kernel:
            anchor = node
            tied_op = node.args[0] if compat.is_getitem(node) else node
    for node, held_by in ties:
        _tie(gm, node, held_by)
    if ties:
        gm.recompile()
    return len(ties)


def _steps(kinds: dict[Node, OpKind]) -> dict[Node, int]:
    """Number of kernels of their own before each node, its own included."""
    steps, count = {}, 0
    for node, kind in kinds.items():
        count += kind is OpKind.EXTERN
        steps[node] = count
    return steps


def _is_crowded(kinds: dict[Node, OpKind], crowded: Container[str]) -> dict[Node, bool]:
    found, following = {}, False
    for node in reversed(kinds):
        if not node.meta.get(MADE) and kinds[node] is not OpKind.VIEW:
            following = node.name in crowded
        found[node] = following
    return found


def _is_written_out(node: Node, kinds: dict[Node, OpKind], steps: dict[Node, int]) -> bool:
    """Whether a fusible value becomes a buffer: a kernel of its own reads it, or a later step does."""
    stack, seen = list(node.users), set()
    while stack:
        user = stack.pop()
        kind = kinds.get(user)
        if kind is None or user in seen:
            continue
        seen.add(user)
        if kind is OpKind.EXTERN or (kind is OpKind.FUSIBLE and steps[user] != steps[node]):
            return True
        if kind is OpKind.VIEW:
            stack.extend(user.users)
    return False


def _tie(gm: GraphModule, node: Node, anchor: Node) -> None:
    users = list(node.users)
    with gm.graph.inserting_after(node):
        held = gm.graph.call_function(compat.held_after(), (node, anchor))
    held.meta = dict(node.meta)
    for user in users:
        user.replace_input_with(node, held)
