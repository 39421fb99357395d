"""Small updates whose joint graphs the passes are tested on, and graphs made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from hilore_planner.passes.graph import JointGraph, normalise
from tests.peak.programs import Attention, MeanSquare, Mlp


class Block(nn.Module):
    """Attention, then a two-layer MLP with residual; [batch, tokens, width]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.mlp = Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(self.attention(x))
        return out


class Stack(nn.Module):
    """Two equal layers and a mean square."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width), Block(width)])
        self.loss = MeanSquare()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.loss(x)
        return out


def seeded(model: type[nn.Module], *arguments: Any) -> nn.Module:
    """A model whose weights are always the same."""
    torch.manual_seed(0)
    return model(*arguments)


class HandMade:
    """A joint graph put together node by node; values are fake tensors on the CPU."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.mode = FakeTensorMode()

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        with self.mode:
            return torch.empty(shape, dtype=dtype)

    def input(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = self.tensor(*shape, dtype=dtype)
        return node

    def call(self, target: Any, *args: Any, tag: str = "is_forward", **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        values, keywords = torch.fx.map_arg((args, kwargs), lambda arg: arg.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values, **keywords)
        node.meta["partitioner_tag"] = tag
        return node

    def joint(
        self,
        outputs: Sequence[Node],
        gradients: Sequence[Node | None],
        *,
        parameters: Sequence[int] = (),
    ) -> JointGraph:
        self.graph.output([*outputs, *gradients])
        gm = GraphModule(nn.Module(), self.graph)
        return normalise(
            gm, num_forward_outputs=len(outputs), static_input_indices=tuple(parameters)
        )
