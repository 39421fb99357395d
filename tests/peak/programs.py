"""Small programs whose peak is measured, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from hilore_planner.peak import StepPeak, Wrapper, capture_wrappers, measured_peak_bytes, step_peak
from hilore_planner.peak.workspace import MeasuredWorkspaces

Loss = Callable[..., torch.Tensor]


class Mlp(nn.Module):
    """Norm, linear, GELU, dropout, linear, residual; [rows, width]."""

    def __init__(self, width: int = 128, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.up(self.norm(x))), self.dropout)
        out: torch.Tensor = x + self.down(y)
        return out


class Attention(nn.Module):
    """Causal self-attention with one projection for q, k, v; [batch, tokens, width]."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = split.unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class MeanSquare(nn.Module):
    """A loss of anything."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


class LanguageModel(nn.Module):
    """Embedding, attention, MLP, head and cross entropy; ids [batch, tokens]."""

    def __init__(self, vocabulary: int = 1024, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = nn.Sequential(Attention(width), Mlp(width))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(self.embedding(ids)))
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


class Mutating(nn.Module):
    """Updates a buffer; returns a loss, a view of its input and a saved activation."""

    total: torch.Tensor

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("total", torch.zeros(512, width))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.inner(x))
        self.total.add_(y.detach())
        return y.square().mean(), x.view(-1, 2), y.detach()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled, warm update and its two wrappers.

    `run` begins and ends without gradients; `accumulate` adds to those that are there.
    """

    forward: Wrapper
    backward: Wrapper
    run: Callable[[], object]
    accumulate: Callable[[], object]

    def predicted(self) -> StepPeak:
        """The predicted update on the CPU."""
        return step_peak(
            self.forward,
            self.backward,
            self.forward.example_inputs,
            device="cpu",
            workspaces=MeasuredWorkspaces("cpu"),
        )

    def measured_bytes(self) -> int:
        """Peak of the update, beyond what was there."""
        self.run()
        return measured_peak_bytes(self.run, "cpu").added_bytes


def compiled(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Compiled:
    """Compile a model whose first (or only) output is its loss, with stock Inductor."""
    torch._dynamo.reset()
    function = torch.compile(model)

    def accumulate() -> object:
        outputs = function(*inputs)
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        loss.backward()
        return outputs

    with capture_wrappers() as wrappers:
        accumulate()
    (forward,) = (wrapper for wrapper in wrappers if not wrapper.is_backward)
    (backward,) = (wrapper for wrapper in wrappers if wrapper.is_backward)

    def run() -> object:
        model.zero_grad(set_to_none=True)
        outputs = accumulate()
        model.zero_grad(set_to_none=True)
        return outputs

    run()
    return Compiled(forward, backward, run, accumulate)
