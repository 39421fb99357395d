"""Models just large enough that there is something to decide: values of 64 KiB and more."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.passes.programs import Block
from tests.peak.programs import MeanSquare


def block() -> nn.Module:
    """Attention and MLP; [2, 128, 64] gives values of 64 to 256 KiB."""
    torch.manual_seed(0)
    return nn.Sequential(Block(), MeanSquare())


def batch(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Narrow(nn.Module):
    """Two linear layers around a tanh; [256, 64] gives values of 64 and 128 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.tanh(self.up(x))).square().mean()
        return out


class Dropped(nn.Module):
    """Three times linear, GELU and dropout; [1024, 64] gives values of 256 KiB and masks of 64 KiB."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), self.dropout)
        out: torch.Tensor = x.square().mean()
        return out


class Running(nn.Module):
    """Normalises by a running statistic that it updates, and that backward needs as it was."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.rest = nn.Linear(64, 64), Dropped(dropout=0.0)
        self.register_buffer("average", torch.full((64,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        z = torch.tanh(y * torch.exp(self.average))
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * y.square().mean(0))
        out: torch.Tensor = self.rest(z)
        return out


class Noisy(nn.Module):
    """A print in the middle: two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        out: torch.Tensor = torch.tanh(self.second(y)).square().mean()
        return out
