from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.passes.joint import Cut, Traced, cut, trace_update
from tests.passes.placements import place, prefer, problem_of
from tests.passes.programs import Block, Stack, seeded
from tests.peak.programs import MeanSquare


@pytest.fixture(scope="session")
def block() -> Traced:
    """Attention and MLP in float64."""
    model = nn.Sequential(seeded(Block), MeanSquare()).double()
    generator = torch.Generator().manual_seed(1)
    return trace_update(model, torch.randn(2, 32, 64, generator=generator, dtype=torch.float64))


@pytest.fixture(scope="session")
def block_float32() -> Traced:
    """The same in float32."""
    model = nn.Sequential(seeded(Block), MeanSquare())
    generator = torch.Generator().manual_seed(1)
    return trace_update(model, torch.randn(2, 32, 64, generator=generator))


@pytest.fixture(scope="session")
def stack() -> Traced:
    """Two equal layers; 2 x 32 tokens."""
    return trace_update(seeded(Stack), torch.randn(2, 32, 64))


@pytest.fixture
def halves(block: Traced) -> Cut:
    """The block's forward and backward, where all that may be is recomputed."""
    graph = block.units()
    return cut(graph, place(problem_of(graph), prefer("recompute")))
