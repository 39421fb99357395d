"""Values made of few numbers that many are multiplied by, written out once: cosines and sines of positions.

Inductor makes a pointwise value again in every kernel that reads it, for each number that the kernel makes: of a rotary
embedding, a cosine and a sine for every head, feature and token of queries and keys, in every layer, in forward and
backward. Both take a kernel some hundred and fifty steps, all else it does there twenty. From memory they are read in
the order they lie in, where the angles that they are made from lie transposed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.ops import OpKind, kind_of, tensor

aten = torch.ops.aten
_COSTLY = frozenset({aten.cos.default, aten.sin.default})
_TIMES = 4
"""How many numbers are made of each of a table, at the least."""


def write_tables(gm: GraphModule) -> int:
    """Have cosines and sines that are read for many numbers each written to memory, in place; returns how many.

    They are written as they were made in registers: no bit of what is made from them changes. A backward that makes
    them again for every step has them made for the first, and kept.
    """
    found = [node for node in gm.graph.nodes if is_table(node)]
    if not found:
        return 0
    numbers, tables = _numbered(gm), dict[int, Node]()
    for node in found:
        first = tables.setdefault(numbers[node], node)
        if first is node:
            compat.write_out(node)
        else:
            node.replace_all_uses_with(first)
    if len(tables) < len(found):
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return len(tables)


def _numbered(gm: GraphModule) -> dict[Node, int]:
    """A number for each node, the same for those whose fusible work is the same on the same values."""
    numbers: dict[Node, int] = {}
    seen: dict[object, int] = {}
    for node in gm.graph.nodes:
        key: object = node
        if node.op == "call_function" and kind_of(node) is not OpKind.EXTERN:
            key = str((node.target, *_with(numbers, node)))
        numbers[node] = seen.setdefault(key, len(seen))
    return numbers


def _with(numbers: dict[Node, int], node: Node) -> tuple[Any, ...]:
    """Its arguments, with a number in each node's place."""
    return torch.fx.map_arg((node.args, node.kwargs), lambda arg: f"%{numbers[arg]}")


def is_table(node: Node) -> bool:
    """Whether a value is dear to make and read for many numbers each."""
    value = tensor(node)
    if node.target not in _COSTLY or value is None:
        return False
    return _largest_made(node) >= _TIMES * _numel(value)


def _largest_made(node: Node) -> int:
    """Numbers of the largest value that is made from one in its readers' kernels."""
    most = _numel(node.meta["val"])
    for user in node.users:
        made = tensor(user)
        if made is None or kind_of(user) is OpKind.EXTERN:
            continue
        is_wider = _numel(made) > _numel(node.meta["val"])
        most = max(most, _numel(made) if is_wider else _largest_made(user))
    return most


def _numel(value: torch.Tensor) -> int:
    return compat.hint(value.numel())
