"""Cuts a head as a :class:`HeadSite` says; decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from hilore_planner.errors import OptionError
from hilore_planner.head_plan import Totals
from hilore_planner.passes import compat
from hilore_planner.passes.head.emit import Emitter
from hilore_planner.passes.head.operands import operands
from hilore_planner.passes.head.order import sort_stably
from hilore_planner.passes.head.reach import ancestors
from hilore_planner.passes.head.shapes import shape_of, tensor_of
from hilore_planner.passes.head.site import HEAD_MARK, ChunkPass, Exit, HeadSite
from hilore_planner.passes.head.sweep import emit_sweep

aten = torch.ops.aten
prims = torch.ops.prims


def rewrite_head(gm: GraphModule, site: HeadSite, chunks: int, totals: Totals = "gradient") -> None:
    """Cut the head of a joint graph into row chunks, in place.

    ``site`` comes from :func:`plan_head` on this graph, unchanged since. What the early form hands
    to backward is tagged ``MUST_SAVE``. ``totals`` is of the weight's gradient, where that is a half.

    Raises:
        OptionError: ``chunks`` is not a positive number.
    """
    if chunks < 1:
        raise OptionError(f"head chunks: {chunks} is not a number of chunks; give 1 or more")
    replaced = {step.node for sweep in site.passes for step in sweep.steps}
    emitter = Emitter(gm.graph, replaced)
    if site.form == "early":
        _rewrite_early(emitter, site, chunks, totals)
    else:
        _rewrite_rebuild(emitter, site, chunks, totals)
    _read_sizes_elsewhere(emitter, replaced)
    for node in emitter.added:
        node.meta[HEAD_MARK] = True
    sort_stably(gm.graph, emitter.places)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()


def _rewrite_early(emitter: Emitter, site: HeadSite, chunks: int, totals: Totals) -> None:
    (sweep,) = site.passes
    outside = _outside(sweep)
    twins = _forward_twins(emitter, site.tangent, outside)
    inside = {step.node for step in sweep.steps}
    with emitter.after(_latest(emitter, (twins.get(node, node) for node in outside)), "is_forward"):
        made = emit_sweep(emitter, site, sweep, lambda node: twins.get(node, node), chunks, totals)
    for leaving in sweep.exits:
        whole = made[leaving.node]
        if leaving.needs_tangent and site.tangent is not None:
            whole.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            with emitter.after(emitter.position(leaving.node), "is_backward"):
                whole = _scaled(emitter, leaving, whole, site.tangent)
        _replace(leaving.node, whole, inside)


def _scaled(emitter: Emitter, leaving: Exit, whole: Node, tangent: Node) -> Node:
    """An early gradient times the tangent: exact for 1, else rounded once to the value's dtype."""
    node, value = leaving.node, tensor_of(whole)
    assert value is not None
    exact = value.dtype in (torch.float32, torch.float64)
    tangent = emitter.call(node, aten.view.default, tangent, [])
    if exact:
        factor = emitter.call(node, prims.convert_element_type.default, tangent, value.dtype)
        return emitter.call(node, aten.mul.Tensor, whole, factor)
    factor = emitter.call(node, prims.convert_element_type.default, tangent, torch.float32)
    wider = emitter.call(node, prims.convert_element_type.default, whole, torch.float32)
    product = emitter.call(node, aten.mul.Tensor, wider, factor)
    return emitter.call(node, prims.convert_element_type.default, product, value.dtype)


def _rewrite_rebuild(emitter: Emitter, site: HeadSite, chunks: int, totals: Totals) -> None:
    forward, backward = site.passes
    outside = _outside(forward)
    twins = _forward_twins(emitter, None, outside)
    later = {step.node for step in backward.steps}
    inside = {step.node for step in forward.steps} | later
    with emitter.after(_latest(emitter, (twins.get(node, node) for node in outside)), "is_forward"):
        made = emit_sweep(
            emitter, site, forward, lambda node: twins.get(node, node), chunks, totals
        )
    for node, whole in made.items():
        _replace(node, whole, inside)
    read = [made.get(node, node) for node in _outside(backward)]
    with emitter.after(_latest(emitter, read), "is_backward"):
        made_later = emit_sweep(
            emitter, site, backward, lambda node: made.get(node, node), chunks, totals
        )
    for node, whole in made_later.items():
        _replace(node, whole, inside)


def _outside(sweep: ChunkPass) -> list[Node]:
    """Values a sweep reads that were made before it."""
    inside = {step.node for step in sweep.steps}
    read = (operand.node for step in sweep.steps for operand in operands(step.recipe))
    return [node for node in dict.fromkeys(read) if node not in inside]


def _forward_twins(
    emitter: Emitter, tangent: Node | None, outside: Collection[Node]
) -> dict[Node, Node]:
    """Forward copies of what the sweep reads but the graph computes in backward, the tangent one."""
    graph = emitter.graph
    read = ancestors(graph, outside) | set(outside)
    late = {node for node in read if node.op == "call_function" and not emitter.in_forward(node)}
    twins: dict[Node, Node] = {}

    def now(node: Node) -> Node | int:
        if compat.is_sym_node(node):
            return emitter.size(node.meta["val"])
        return twins.get(node, node)

    order = [node for node in graph.nodes if node in late]
    ready = _latest(emitter, (node for node in read if node not in late and node is not tangent))
    with emitter.after(ready, "is_forward"):
        if tangent is not None and tangent in read:
            value = tensor_of(tangent)
            assert value is not None
            one = {"dtype": value.dtype, "device": value.device}
            twins[tangent] = emitter.call(
                tangent, aten.full.default, [1] * len(shape_of(tangent)), 1.0, **one
            )
        for node in order:
            args = torch.fx.map_arg(node.args, now)
            kwargs = torch.fx.map_arg(node.kwargs, now)
            twins[node] = emitter.call(node, node.target, *args, **kwargs)
    return twins


def _latest(emitter: Emitter, nodes: Iterable[Node]) -> int:
    return max(emitter.position(node) for node in nodes)


def _replace(old: Node, new: Node, inside: Collection[Node]) -> None:
    old.replace_all_uses_with(
        new, delete_user_cb=lambda user: user not in inside, propagate_meta=False
    )


def _read_sizes_elsewhere(emitter: Emitter, replaced: Collection[Node]) -> None:
    """Symbolic sizes that were read off values that go are read off others."""
    for node in replaced:
        for user in list(node.users):
            if compat.is_sym_node(user):
                size = emitter.size(user.meta["val"])
                user.replace_all_uses_with(size, propagate_meta=False)  # type: ignore[arg-type]
                emitter.graph.erase_node(user)
