"""Putting new nodes into a joint graph, with the metadata later stages rely on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.marks import MADE

aten = torch.ops.aten


def fake_mode_of(nodes: Sequence[Node]) -> Any:
    """The fake-tensor mode of the graph; a no-op context for graphs of real tensors."""
    mode = torch._guards.detect_fake_mode([node.meta.get("val") for node in nodes])
    return mode if mode is not None else nullcontext()


def value_of(argument: Any) -> Any:
    """The fake value behind a node; other arguments as they are."""
    return argument.meta["val"] if isinstance(argument, Node) else argument


def clone_node(graph: Graph, node: Node, twin: Callable[[Node], Node]) -> Node:
    """Run ``node`` again on the twins of its inputs, as a backward node with a storage of its own.

    The tag keeps it out of the forward: cutting takes over whatever the inputs allow, and dead-code elimination spares
    attention, which counts as random whether or not it draws.
    """
    args = torch.fx.map_arg(node.args, twin)
    kwargs = torch.fx.map_arg(node.kwargs, twin)
    copy = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
    copy.meta = {key: value for key, value in node.meta.items() if key != "recompute"}
    copy.meta |= {"partitioner_tag": "must_be_in_backward", MADE: True}
    inputs = torch.fx.map_arg(args, value_of)
    with fake_mode_of([node, *node.all_input_nodes]):
        copy.meta["val"] = node.target(*inputs, **torch.fx.map_arg(kwargs, value_of))  # type: ignore[operator]
    return copy


Traces = dict[object, GraphModule]
"""Functions traced already, by function and layout of their inputs."""


def inline(
    graph: Graph,
    function: Callable[..., Any],
    inputs: Sequence[Node],
    *,
    tag: str,
    origin: Node,
    traces: Traces | None = None,
) -> tuple[Node, ...]:
    """Trace ``function`` over the inputs' fake values and insert its ops at the insertion point.

    Returns the nodes of its outputs. ``tag`` is the partitioner tag; attribution is that of ``origin``. With ``traces``
    a function met before with inputs of the same layout is not traced again: layers are alike.
    """
    env: dict[Node, Node] = {}
    remaining = iter(inputs)
    sizes = _size_node(graph, inputs, tag)
    with fake_mode_of(inputs):
        traced = _traced(function, inputs, {} if traces is None else traces)
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(remaining)
            elif node.op == "call_function":
                args = torch.fx.map_arg(node.args, env.__getitem__)
                args = torch.utils._pytree.tree_map(sizes, args)
                kwargs = torch.fx.map_arg(node.kwargs, env.__getitem__)
                copy = graph.call_function(node.target, args, kwargs)
                copy.meta = {**_attribution(origin), "partitioner_tag": tag, MADE: True}
                copy.meta["val"] = node.target(
                    *torch.fx.map_arg(args, value_of), **torch.fx.map_arg(kwargs, value_of)
                )
                env[node] = copy
    result = traced.graph.output_node().args[0]
    flat = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(env[node] for node in flat)  # type: ignore[index]


def _traced(function: Callable[..., Any], inputs: Sequence[Node], traces: Traces) -> GraphModule:
    values = [node.meta["val"] for node in inputs]
    layout = tuple((tuple(v.shape), v.stride(), v.dtype, v.device) for v in values)
    if any(isinstance(n, torch.SymInt) for v in values for n in (*v.shape, *v.stride())):
        return compat.trace(function, values)  # sizes of this very graph are in its arguments
    key = (function, layout)
    if key not in traces:
        traces[key] = compat.trace(function, values)
    return traces[key]


def _attribution(origin: Node) -> dict[str, Any]:
    wanted = ("nn_module_stack", "stack_trace", "seq_nr")
    return {key: origin.meta[key] for key in wanted if key in origin.meta}


def _size_node(graph: Graph, inputs: Sequence[Node], tag: str) -> Callable[[Any], Any]:
    """Symbolic sizes must come from nodes: find the input dimension a size stands for."""

    def replace(argument: Any) -> Any:
        if not isinstance(argument, torch.SymInt):
            return argument
        for node in inputs:
            for dim, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt) and size.node.expr == argument.node.expr:
                    found = graph.call_function(aten.sym_size.int, (node, dim))
                    found.meta = {"val": size, "partitioner_tag": tag}
                    return found
        raise NotImplementedError(f"no dimension of the inputs has the size {argument}")

    return replace
