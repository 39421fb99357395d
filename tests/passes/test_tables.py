"""Cosines and sines of positions are made once, whatever is turned by them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from hilore_planner.backend import hilore
from hilore_planner.passes import compat
from hilore_planner.passes.chains import Chain, pieces
from hilore_planner.passes.tables import write_tables
from hilore_planner.peak import capture_wrappers

pytestmark = pytest.mark.compat

_KERNEL = re.compile(r"async_compile\.\w+\(.*?'''(.*?)'''", re.DOTALL)


class Turned(nn.Module):
    """Two projections, turned by as much as their tokens are far: rotary embeddings. (B, T, 64) -> scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).float(), torch.linspace(0.1, 1.0, 32))
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        for layer in (self.first, self.second):
            heads = layer(x).unflatten(-1, (-1, 64)).transpose(1, 2)
            low, high = heads.chunk(2, -1)
            heads = heads * cos + torch.cat((-high, low), -1) * sin
            x = heads.transpose(1, 2).flatten(-2)
        return x.square().mean()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Turned()


def _gradients(
    model: nn.Module, update: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> list[torch.Tensor]:
    model.zero_grad()
    update(x).backward()  # type: ignore[no-untyped-call]
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def test_cosines_are_made_by_one_kernel_of_each_half(model: nn.Module) -> None:
    x = torch.randn(2, 320, 64)  # too many angles to be kept whatever is decided
    torch._dynamo.reset()
    with capture_wrappers() as wrappers:
        found = _gradients(model, torch.compile(model, backend=hilore), x)
    for wrapper in wrappers:
        kernels = _KERNEL.findall(Path(wrapper.path).read_text())
        turning = [kernel for kernel in kernels if ".cos()" in kernel or ".sin()" in kernel]
        assert len(turning) <= 1
    assert len(wrappers) == 2
    expected = _gradients(model, model, x)
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_only_what_many_numbers_are_made_of_is_written_out() -> None:
    def turned(angles: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * (2 * angles.cos()).unsqueeze(0), y * angles.sin()

    value = torch.randn(4, 8)
    gm = compat.trace(turned, (value, torch.randn(4, 4, 8), value))
    assert write_tables(gm) == 1
    (written,) = (n for n in gm.graph.nodes if n.meta.get("inductor_realize_to_strides"))
    assert written.target is torch.ops.aten.cos.default


def test_a_table_is_read_from_memory_by_whoever_makes_values_again_of_it() -> None:
    def turned(x: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = x * angles.cos()
        return (heads.exp() * 2).sum(), heads

    inputs = (torch.randn(8, 4, 8), torch.randn(4, 8))
    gm = compat.trace(turned, inputs)
    (before,) = (piece for piece in pieces(gm) if isinstance(piece, Chain))
    assert write_tables(gm) == 1
    made, after = (piece for piece in pieces(gm) if isinstance(piece, Chain))
    cosine = made.nodes[-1]
    assert cosine.target is torch.ops.aten.cos.default
    assert cosine in before.nodes
    assert cosine in after.inputs
    assert cosine not in after.nodes
