"""What made-up indices may index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.chains import Chain
from hilore_planner.passes.ops import op_name, tensor


def index_limit(chain: Chain) -> int:
    """Below which any integer may index whatever the chain looks up or scatters into."""
    sizes = [
        compat.hint(size) for node in chain.nodes for size in _indexed_sizes(node) if size != 0
    ]
    return min(sizes, default=2)


def _indexed_sizes(node: Node) -> Sequence[Any]:
    shape = _shape(node.args[0]) if node.args else ()
    name = op_name(node)
    if name in ("gather", "scatter", "scatter_add", "index_select", "index_add"):
        return [shape[node.args[1]]] if shape else ()  # type: ignore[index]
    if name == "embedding":
        return shape[:1]
    if name == "embedding_dense_backward":
        return [node.args[2]]
    if name.removeprefix("_unsafe_").removeprefix("masked_").startswith("index"):
        indices: Any = node.args[2 if "masked" in name else 1]
        return [size for size, index in zip(shape, indices, strict=False) if index is not None]
    return ()


def _shape(argument: Any) -> Sequence[Any]:
    value = tensor(argument) if isinstance(argument, Node) else None
    return () if value is None else value.shape
