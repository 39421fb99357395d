"""Random small networks: layers of several kinds, with odd sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

KINDS = ("mlp", "gated", "attention", "split", "gate", "shared", "table")


@dataclass(frozen=True, slots=True)
class Net:
    """A network to build.

    Attributes:
        kinds: of its layers, in order.
        batch, tokens, heads, head_width: sizes; the width is ``heads * head_width``.
        hidden: width inside MLPs.
        norm: before each layer.
        is_residual: whether a layer adds to its input.
    """

    kinds: tuple[str, ...]
    batch: int
    tokens: int
    heads: int
    head_width: int
    hidden: int
    norm: str
    is_residual: bool

    @property
    def width(self) -> int:
        return self.heads * self.head_width

    def build(self) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        return Stack(self), torch.randn(self.batch, self.tokens, self.width)


def nets(part: int) -> st.SearchStrategy[Net]:
    """Networks of one to three layers with values of 100 to 750 KiB; every part has others."""
    first = KINDS[part::2]
    return st.builds(
        Net,
        kinds=st.builds(
            lambda kind, others: (kind, *others),
            st.sampled_from(first),
            st.lists(st.sampled_from(KINDS), max_size=2),
        ),
        batch=st.integers(2, 3),
        tokens=st.sampled_from([128, 143, 161]),
        heads=st.integers(3, 4),
        head_width=st.sampled_from([33, 36, 40]),
        hidden=st.sampled_from([150, 256, 391]),
        norm=st.sampled_from(["layer", "rms", "none"]),
        is_residual=st.booleans(),
    )


class Stack(nn.Module):
    """The layers of a net, and a loss of their result."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.is_residual = net.is_residual
        shared = nn.Linear(net.width, net.width)
        self.layers = nn.ModuleList(_layer(kind, net, shared) for kind in net.kinds)
        norms = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
        make = norms.get(net.norm)
        self.norms = nn.ModuleList(
            make(net.width) if make is not None else nn.Identity() for _ in net.kinds
        )

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            y = layer(norm(x))
            x = x + y if self.is_residual else y
        return x.square().mean()


def _layer(kind: str, net: Net, shared: nn.Linear) -> nn.Module:
    match kind:
        case "mlp":
            return nn.Sequential(
                nn.Linear(net.width, net.hidden), nn.GELU(), nn.Linear(net.hidden, net.width)
            )
        case "gated":
            return Gated(net.width, net.hidden)
        case "attention":
            return Attention(net.width, net.heads)
        case "split":
            return Split(net.width)
        case "gate":
            return Gate(net.width)
        case "shared":
            return nn.Sequential(shared, nn.SiLU(), shared)
    return Table(net.tokens, net.width)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Attention(nn.Module):
    """Causal attention; views and transposes of three projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Split(nn.Module):
    """One product cut in three views, two of them joined again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.together = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.together(x).chunk(3, dim=-1)
        joined = torch.cat((a.sigmoid() * b, c.tanh()), dim=-1)
        return joined.view(*a.shape[:-1], 2, -1).sum(-2)


class Gate(nn.Module):
    """A softmax over features that gates the input; its product is read twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.score(x).softmax(-1)
        return weights * x + weights.detach().exp()


class Table(nn.Module):
    """A buffer added to its input, a transposed product over tokens."""

    table: Tensor

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, tokens * width).view(tokens, width))
        self.mix = nn.Linear(tokens, tokens, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix((x + self.table).mT).mT
        return F.relu(mixed) + x.cos()
