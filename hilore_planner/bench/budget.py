"""Torch's own memory budget: under which share of it no more than so many bytes are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from hilore_planner.head_decision import copied
from hilore_planner.passes import compat
from hilore_planner.passes.ops import storage_bytes, tensor

_HALVINGS = 6


class _Search(compat.CustomPartitionerFn):
    """Cuts copies of the joint graph as torch does, under one budget after another, and then gives up."""

    def __init__(self, saved_bytes: int) -> None:
        self._saved_bytes = saved_bytes
        self.share: float | None = None

    def uuid(self) -> str:
        """Part of Inductor's cache key; nothing gets that far."""
        return "search"

    def __call__(self, gm: GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Any:
        low, high = 0.0, 1.0
        try:
            for _ in range(_HALVINGS):
                share = (low + high) / 2
                compat.set_activation_memory_budget(share)
                forward, _ = compat.default_partition(copied(gm)[0], joint_inputs, **keywords)
                is_enough = _saved_bytes(forward, keywords["num_fwd_outputs"]) <= self._saved_bytes
                low, high = (share, high) if is_enough else (low, share)
        finally:
            compat.set_activation_memory_budget(1.0)
        self.share = low
        raise StopIteration("found")


def _saved_bytes(forward: GraphModule, num_outputs: int) -> int:
    """Of storages that a forward makes and hands to the backward."""
    inputs = {compat.storage_key(node) for node in forward.graph.find_nodes(op="placeholder")}
    outputs: Any = forward.graph.output_node().args[0]
    saved = {
        compat.storage_key(node): storage_bytes(value)
        for node in outputs[num_outputs:]
        if (value := tensor(node)) is not None
    }
    return sum(size for key, size in saved.items() if key not in inputs)


def share_that_saves(loss: Callable[..., Any], batch: Iterable[Any], saved_bytes: int) -> float:
    """The largest share, to a 64th, under which torch's partitioner saves no more than ``saved_bytes`` of an update."""
    search = _Search(saved_bytes)

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Any:
        return compat.compile_graph(gm, inputs, {"custom_partitioner_fn": search})

    compiled: Any = torch.compile(loss, dynamic=False, backend=backend)
    try:
        compiled(*batch)
    except Exception:
        if search.share is None:
            raise
    finally:
        torch._dynamo.reset()
    assert search.share is not None
    return search.share
