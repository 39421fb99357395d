"""A causal language model of a few hundred weights in fp64."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

VOCAB, WIDTH = 11, 8


class Tiny(nn.Module):
    """One attention layer. Row t sees tokens up to t and predicts token t + 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, WIDTH, dtype=torch.float64)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64)
        self.head = nn.Linear(WIDTH, VOCAB, dtype=torch.float64)

    def forward(self, ids: Tensor, targets: Tensor, owner: Tensor | None = None) -> Tensor:
        """Log-probabilities of ``targets``; ``owner`` (T,) keeps packed sequences apart.

        Shapes: (B, T) in and out; packed with B = 1.
        """
        query, key, value = self.mix(self.embed(ids)).chunk(3, -1)
        length = ids.shape[1]
        sees = torch.ones(length, length).tril().bool()
        if owner is not None:
            sees = sees & (owner.unsqueeze(0) == owner.unsqueeze(1))
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(WIDTH)
        mixed = torch.softmax(scores.masked_fill(~sees, -math.inf), -1) @ value
        logits = torch.log_softmax(self.head(mixed), -1)
        return logits.gather(-1, targets.unsqueeze(-1))[..., 0]

    def gradient(self) -> Tensor:
        """All gradients in one vector, which are then cleared; zeros where there is none."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters()]
        self.zero_grad()
        return torch.cat([part.flatten() for part in parts])
