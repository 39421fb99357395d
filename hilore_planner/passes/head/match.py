"""Finds a language-model head in a joint graph and decides how it can be cut; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.head.linear import first_nonlinear
from hilore_planner.passes.head.reach import (
    MATMULS,
    ancestors,
    closing_values,
    descendants,
    wide_values,
)
from hilore_planner.passes.head.shapes import numel_hint, shape_of, tensor_of
from hilore_planner.passes.head.site import (
    ChunkPass,
    HeadRefusal,
    HeadSite,
    NotRowWiseError,
    Size,
)
from hilore_planner.passes.head.trace import trace_pass

aten = torch.ops.aten
_PICKS = (aten.gather.default, aten.amax.default)
"""What tells a head from any other matmul: a target is picked, or a softmax taken, along the vocabulary."""


@dataclass(frozen=True, slots=True)
class _Head:
    """Node sets around one head's matmul."""

    graph: Graph
    order: tuple[Node, ...]
    logits: Node
    wide: frozenset[Node]
    closing: frozenset[Node]
    tangents: tuple[Node, ...]
    dependent: frozenset[Node]
    """What reads a tangent, directly or not."""

    def between(self, sources: Collection[Node], sinks: Collection[Node]) -> set[Node]:
        """Smaller values on the way from some vocabulary-sized values to others."""
        return (descendants(self.graph, sources) & ancestors(self.graph, sinks)) - self.wide


def plan_head(gm: GraphModule) -> HeadSite | HeadRefusal:
    """Find the largest language-model head of a joint graph and say how to cut it, or why not.

    The graph is one AOTAutograd made, with dead code removed, after joint passes and
    :func:`~hilore_planner.passes.head.normalise_head`; it is not changed.
    """
    found = _largest_head(gm.graph)
    if found is None:
        return HeadRefusal("the graph has no language-model head")
    logits, wide = found
    returned = [node for node in wide if any(user.op == "output" for user in node.users)]
    if returned:
        return HeadRefusal(
            f"{returned[0].name} has the size of the vocabulary and is returned to the caller, so it "
            "is alive through all of backward: return log-probabilities instead",
            returned[0],
        )
    tangents = tuple(n for n in gm.graph.nodes if n.op == "placeholder" and compat.is_tangent(n))
    head = _Head(
        gm.graph,
        tuple(gm.graph.nodes),
        logits,
        frozenset(wide),
        frozenset(closing_values(wide)),
        tangents,
        frozenset(descendants(gm.graph, tangents)),
    )
    try:
        return _early(head)
    except NotRowWiseError as error:
        why = f"{error.reason} ({error.node.name})"
    try:
        return _rebuild(head, why)
    except NotRowWiseError as error:
        return HeadRefusal(error.reason, error.node)


def _largest_head(graph: Graph) -> tuple[Node, set[Node]] | None:
    matmuls = [node for node in graph.nodes if node.target in MATMULS and _expands(node)]
    for node in sorted(matmuls, key=numel_hint, reverse=True):
        wide = wide_values(node)
        if any(user.target in _PICKS for value in wide for user in value.users):
            return node, wide
    return None


def _expands(node: Node) -> bool:
    """Whether a matmul's rows become wider: a vocabulary is larger than a hidden size."""
    left, _ = _factors(node)
    return compat.hint(shape_of(node)[1]) > compat.hint(shape_of(left)[1])


def _factors(node: Node) -> tuple[Node, Node]:
    left, right = node.args[-2:]
    assert isinstance(left, Node)
    assert isinstance(right, Node)
    return left, right


def _early(head: _Head) -> HeadSite:
    """Logits once; their gradient as soon as they are there."""
    members = head.wide | head.closing | head.between(head.wide, head.wide)
    used = [t for t in head.tangents if t in ancestors(head.graph, members)]
    tangent = _scalar_tangent(head, used)
    only = trace_pass(
        head.order,
        head.logits,
        members,
        wide=head.wide,
        read_later=(),
        tangent_dependent=head.dependent,
    )
    on_the_way = (ancestors(head.graph, members) | members) & head.dependent
    carriers = head.dependent | set(head.tangents)
    odd = first_nonlinear([n for n in head.order if n in on_the_way], carriers)
    if odd is not None:
        raise NotRowWiseError(odd, "not known to be linear in the loss's tangent")
    for leaving in only.exits:
        value = tensor_of(leaving.node)
        if leaving.needs_tangent and value is not None and value.dtype is torch.float16:
            raise NotRowWiseError(leaving.node, "a float16 gradient needs its loss scale first")
    return _site(head, "early", (only,), tangent, "")


def _scalar_tangent(head: _Head, used: Sequence[Node]) -> Node | None:
    if len(used) > 1:
        names = ", ".join(node.name for node in used)
        raise NotRowWiseError(
            used[1],
            f"several outputs that require grad reach the head: {names}; detach all but one",
        )
    if used and numel_hint(used[0]) != 1:
        raise NotRowWiseError(used[0], "the loss is outside: the gradient comes per token")
    return used[0] if used else None


def _rebuild(head: _Head, why: str) -> HeadSite:
    """Logits once in forward, and once more in backward."""
    closing_forward = head.closing - head.dependent
    wide_forward = head.wide & ancestors(head.graph, closing_forward)
    members = wide_forward | closing_forward
    members |= head.between(wide_forward, wide_forward) - head.dependent
    closing_backward = head.closing & head.dependent
    wide_backward = head.wide & ancestors(head.graph, closing_backward)
    later = wide_backward | closing_backward
    later |= head.between(wide_backward & head.dependent, wide_backward) & head.dependent
    forward = trace_pass(
        head.order,
        head.logits,
        members,
        wide=head.wide,
        read_later=later,
        tangent_dependent=head.dependent,
    )
    backward = trace_pass(
        head.order,
        head.logits,
        later,
        wide=head.wide,
        read_later=(),
        tangent_dependent=head.dependent,
    )
    return _site(head, "rebuild", (forward, backward), None, why)


def _site(
    head: _Head, form: str, passes: tuple[ChunkPass, ...], tangent: Node | None, why: str
) -> HeadSite:
    left, _ = _factors(head.logits)
    rows, vocabulary = shape_of(head.logits)
    hidden: Size = shape_of(left)[1]
    return HeadSite(
        form="early" if form == "early" else "rebuild",
        logits=head.logits,
        rows=rows,
        vocabulary=vocabulary,
        hidden=hidden,
        passes=passes,
        tangent=tangent,
        why_rebuild=why,
        logging_only=_logging_only(head),
    )


def _logging_only(head: _Head) -> tuple[str, ...]:
    """Values made of logits that reach an output of the forward nobody can differentiate."""
    return ()
