"""Decides how a joint graph's language-model head can be cut into row chunks; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes.head.find import Head, find_head
from hilore_planner.passes.head.linear import first_nonlinear
from hilore_planner.passes.head.operands import operands
from hilore_planner.passes.head.outputs import logging_only, several_outputs
from hilore_planner.passes.head.reach import ancestors
from hilore_planner.passes.head.shapes import numel_hint, shape_of, tensor_of
from hilore_planner.passes.head.site import (
    ChunkPass,
    Form,
    HeadRefusal,
    HeadSite,
    NotRowWiseError,
    Step,
)
from hilore_planner.passes.head.trace import trace_pass


def plan_head(gm: GraphModule) -> HeadSite | HeadRefusal:
    """Find the largest language-model head of a joint graph and say how to cut it, or why not.

    The graph is one AOTAutograd made, after joint passes and :func:`normalise_head`; it is not
    changed.
    """
    try:
        head = find_head(gm.graph)
        if head is None:
            return HeadRefusal("the graph has no language-model head")
        _check_not_returned(head)
        return _decide(head)
    except NotRowWiseError as error:
        return HeadRefusal(error.reason, error.node)


def _decide(head: Head) -> HeadSite:
    try:
        return _early(head)
    except NotRowWiseError as error:
        return _rebuild(head, f"{error.reason} ({error.node.name})")


def _check_not_returned(head: Head) -> None:
    for node in head.wide:
        if any(user.op == "output" for user in node.users):
            raise NotRowWiseError(
                node,
                "logits are returned to the caller and so alive through all of backward: return "
                "log-probabilities instead",
            )


def _early(head: Head) -> HeadSite:
    """Logits once; their gradient as soon as they are there."""
    members = head.wide | head.closing | head.between(head.wide, head.wide)
    read = ancestors(head.graph, members)
    tangent = _scalar_tangent(head, [tangent for tangent in head.tangents if tangent in read])
    taken_early, all_read = read & head.dependent, read | members
    _check_no_randomness([node for node in head.order if node in taken_early])
    only = _trace(head, members)
    _check_linear(head, [node for node in head.order if node in all_read])
    for leaving in only.exits:
        value = tensor_of(leaving.node)
        if leaving.needs_tangent and value is not None and value.dtype is torch.float16:
            raise NotRowWiseError(leaving.node, "a float16 gradient needs its loss scale first")
    return _site(head, "early", (only,), tangent=tangent)


def _check_no_randomness(nodes: Iterable[Node]) -> None:
    """What the early form does in forward instead of backward must not draw random numbers."""
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotRowWiseError(node, f"{node.target} draws random numbers in backward")


def _scalar_tangent(head: Head, used: Sequence[Node]) -> Node | None:
    if len(used) > 1:
        raise NotRowWiseError(used[1], several_outputs(head, used))
    if used and numel_hint(used[0]) != 1:
        raise NotRowWiseError(used[0], "the loss is outside: the gradient comes per token")
    return used[0] if used else None


def _rebuild(head: Head, why: str) -> HeadSite:
    """Logits once in forward, and once more in backward."""
    closing_forward = head.closing - head.dependent
    wide_forward = head.wide & ancestors(head.graph, closing_forward)
    between_forward = head.between(wide_forward, wide_forward) - head.dependent
    closing_backward = head.closing & head.dependent
    wide_backward = head.wide & ancestors(head.graph, closing_backward)
    between_backward = head.between(wide_backward & head.dependent, wide_backward)
    later = wide_backward | closing_backward | (between_backward & head.dependent)
    forward = _trace(head, wide_forward | closing_forward | between_forward, read_later=later)
    return _site(head, "rebuild", (forward, _trace(head, later)), why=why)


def _trace(
    head: Head, members: Collection[Node], *, read_later: Collection[Node] = ()
) -> ChunkPass:
    found = trace_pass(
        head.order,
        head.logits,
        members,
        rows=head.rows,
        wide=head.wide,
        read_later=read_later,
        tangent_dependent=head.dependent,
    )
    _check_dropped_rows(head, found)
    return found


def _check_dropped_rows(head: Head, sweep: ChunkPass) -> None:
    """What is made of rows that are cut off must be a gradient: zero there."""
    reading = [step.node for step in sweep.steps if _reads_all_rows(step)]
    leaving = {leaving.node for leaving in sweep.exits}
    for node in reading:
        if node in leaving and node not in head.dependent:
            raise NotRowWiseError(node, "it reads rows of logits that are sliced away")
    _check_linear(head, reading)


def _reads_all_rows(step: Step) -> bool:
    return any(o.rows is not None and o.rows.domain == "all" for o in operands(step.recipe))


def _check_linear(head: Head, nodes: Iterable[Node]) -> None:
    carriers = head.dependent | set(head.tangents)
    odd = first_nonlinear([node for node in nodes if node in head.dependent], carriers)
    if odd is not None:
        raise NotRowWiseError(odd, f"{odd.target} is not known to be linear in the gradient")


def _site(
    head: Head,
    form: Form,
    passes: tuple[ChunkPass, ...],
    *,
    tangent: Node | None = None,
    why: str = "",
) -> HeadSite:
    return HeadSite(
        form=form,
        logits=head.logits,
        rows=head.rows["kept"],
        cut=head.cut,
        vocabulary=shape_of(head.logits)[1],
        hidden=head.hidden,
        wide=head.wide,
        passes=passes,
        tangent=tangent,
        why_rebuild=why,
        logging_only=logging_only(head),
    )
