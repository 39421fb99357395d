"""Keep what is rebuilt from a smaller copy for a product apart from row sums of the backward that read the copy, too.

The input of a linear layer, a norm's output, is rebuilt from a copy that the norm's own backward reads as well. Of both
Inductor makes one kernel, which sums rows. What it reads by groups, as scales are, it lays out in another way than what
it writes by rows: it decodes twice then, and the registers that this takes halve the threads at work. Two kernels take
less, though both read the copy. Where no rows are summed, or scales are those of rows, one kernel is better.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import GraphModule, Node

from hilore_planner.passes.marks import COPY, MADE
from hilore_planner.passes.ops import OpKind, kind_of, meets_row_sum, work_readers
from hilore_planner.passes.order import tie

_Kinds = Mapping[Node, OpKind]


def keep_apart(gm: GraphModule) -> int:
    """Have such values written out before the kernel that follows their first reader, in place; returns how many.

    The row sums wait for that kernel, and are no part of the same one then.
    """
    kinds = {n: kind_of(n) for n in gm.graph.nodes if n.op == "call_function"}
    summed = {node.meta[COPY] for node in kinds if COPY in node.meta and meets_row_sum(node)}
    ties = [(after, node) for node in _rebuilt(kinds, summed) if (after := _after(node, kinds))]
    for kernel, node in ties:
        tie(gm, kernel, node)
    if ties:
        gm.recompile()
    return len(ties)


def _rebuilt(kinds: _Kinds, copies: set[str]) -> list[Node]:
    """Fusible work on values decoded from ``copies`` that a kernel of its own reads."""
    found, reading = [], set[Node]()
    for node, kind in kinds.items():
        if kind is OpKind.EXTERN or not node.meta.get(MADE):
            continue
        is_decoded = node.meta.get(COPY) in copies
        if is_decoded or not reading.isdisjoint(node.all_input_nodes):
            reading.add(node)
            is_read = any(kinds.get(r) is OpKind.EXTERN for r in work_readers(node, kinds))
            found += [node] * (is_read and kind is OpKind.FUSIBLE and not is_decoded)
    return found


def _after(node: Node, kinds: _Kinds) -> Node | None:
    """The next kernel of its own after the first that reads a value, if that is no reader."""
    readers = set(work_readers(node, kinds))
    kernels = [each for each, kind in kinds.items() if kind is OpKind.EXTERN]
    first = next(place for place, kernel in enumerate(kernels) if kernel in readers)
    return next((kernel for kernel in kernels[first:] if kernel not in readers), None)
