"""A small decoder-only transformer of Qwen2's shape, to check predictions on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model and its batch, in elements."""

    layers: int = 4
    hidden: int = 896
    intermediate: int = 4864
    heads: int = 14
    kv_heads: int = 2
    vocabulary: int = 32768
    batch: int = 4
    tokens: int = 1024

    @property
    def head_width(self) -> int:
        """Features of one attention head."""
        return self.hidden // self.heads


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; input and output [batch, tokens, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_width
        self.q_proj = nn.Linear(shape.hidden, shape.hidden)
        self.k_proj = nn.Linear(shape.hidden, kv_width)
        self.v_proj = nn.Linear(shape.hidden, kv_width)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Causal attention; `cos` and `sin` are [tokens, head_width]."""
        batch, tokens, hidden = x.shape

        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(batch, tokens, -1, self.shape.head_width).transpose(1, 2)

        q = rotated(heads(self.q_proj(x)), cos, sin)
        k = rotated(heads(self.k_proj(x)), cos, sin)
        v = heads(self.v_proj(x))
        repeats = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return out


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of [batch, heads, tokens, head_width]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layer(nn.Module):
    """One decoder layer; input and output [batch, tokens, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_norm = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape)
        self.post_norm = nn.RMSNorm(shape.hidden)
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attention and gated MLP, each with a residual."""
        x = x + self.attention(self.input_norm(x), cos, sin)
        y = self.post_norm(x)
        out: torch.Tensor = x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))
        return out


class PolicyLoss(nn.Module):
    """Token ids [batch, tokens] and weights [batch, tokens] to a weighted log-probability loss."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        frequency = 1e6 ** -(torch.arange(0, shape.head_width, 2) / shape.head_width)
        angle = torch.outer(torch.arange(shape.tokens), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float().flatten(0, 1)
        losses = F.cross_entropy(logits, ids.roll(-1, 1).flatten(), reduction="none")
        return (losses * weights.flatten()).mean()
