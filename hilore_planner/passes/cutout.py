"""A chain as a program of its own, which can be compiled by itself."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_map

from hilore_planner.passes import compat
from hilore_planner.passes.chains import Chain
from hilore_planner.passes.ops import tensor


def module_of(chain: Chain) -> GraphModule:
    """Takes a chain's inputs and returns its outputs."""
    return GraphModule(torch.nn.Module(), graph_of(chain))


def graph_of(chain: Chain) -> Graph:
    """The ops of a chain, their names numbered: its text is the same for chains that do the same."""
    graph = Graph()
    env = {node: graph.placeholder(f"input_{i}") for i, node in enumerate(chain.inputs)}
    for node in chain.nodes:
        if is_tie(node):
            env[node] = env[compat.used_by(node)[0]]
            continue
        args, kwargs = arguments_of(node, env.__getitem__)
        env[node] = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
    results = [out for node in chain.outputs for out in _tensors_of(graph, node, env[node])]
    graph.output(tuple(results))
    return graph


def arguments_of(node: Node, place: Callable[[Node], Any]) -> Any:
    """A node's arguments, those in the chain as ``place`` has them, sizes as numbers."""

    def replace(arg: Node) -> Any:
        value = arg.meta.get("val")
        return compat.hint(value) if isinstance(value, torch.SymInt) else place(arg)

    def number(value: Any) -> Any:
        return compat.hint(value) if isinstance(value, torch.SymInt) else value

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), replace)
    return tree_map(number, (tuple(args), dict(kwargs)))


def is_tie(node: Node) -> bool:
    """Whether a node only orders others: it is no work, and none by itself."""
    return node.target is compat.held_after()


def _tensors_of(graph: Graph, node: Node, copy: Node) -> Iterator[Node]:
    """A value, or those of an op's results that are used."""
    if tensor(node) is not None:
        yield copy
        return
    used = {user.args[1] for user in node.users if user.target is operator.getitem}
    for place, value in enumerate(node.meta["val"]):
        if place in used and isinstance(value, Tensor):
            yield graph.call_function(operator.getitem, (copy, place))
