"""Smaller copies change the gradient alone, and by no more than asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hilore_planner.backend import hilore
from tests.backend.models import Dropped, batch
from tests.backend.updates import distance, planned, span, unplanned

pytestmark = pytest.mark.compat


@dataclass(frozen=True, slots=True)
class Exact:
    model: torch.nn.Module
    x: torch.Tensor
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    base_bytes: int
    peak_bytes: int


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Exact:
    """What the update computes without a plan, and the caps between which there is something to decide."""
    torch.manual_seed(0)
    model, x = Dropped(dropout=0.0), batch(1024, 64)
    loss, gradients = unplanned(model, x).kept_step()
    roomy = planned(tmp_path_factory.mktemp("roomy"), model, x, memory_cap="1GiB")
    return Exact(model, x, loss, gradients, *span(roomy))


@pytest.mark.parametrize(
    ("codec", "limit"),
    [
        ("int8", 0.02),
        ("int8[:4/16x64]+int6", 0.08),
    ],
)
def test_the_forward_is_unchanged_and_the_gradient_within_its_budget(
    tmp_path: Path, exact: Exact, codec: str, limit: float
) -> None:
    cap = exact.base_bytes + int(0.75 * (exact.peak_bytes - exact.base_bytes))
    torch.manual_seed(0)
    result = planned(
        tmp_path, exact.model, exact.x, memory_cap=cap, gradient_error=limit, codecs=[codec]
    )
    assert f"compress:{codec}" in result.actions, result.plan.summary()
    assert torch.equal(result.loss, exact.loss)
    error = distance(result.gradients, exact.gradients)
    assert 0 < error <= result.plan.predicted_gradient_error <= limit


def test_what_the_caller_gets_is_untouched(tmp_path: Path) -> None:
    """Outputs, one of them saved for backward too, are the very values; only gradients are off."""

    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(64, 128)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            h = torch.tanh(self.inner(x))
            y = h.sin()
            return y, y * y, y.view(-1), x[:1], h.square().mean()

    torch.manual_seed(0)
    model, x = Outputs(), batch(512, 64)
    expected = model(x)
    expected[1].sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    torch._dynamo.reset()
    path = tmp_path / "plan.json"
    options: dict[str, Any] = {"memory_cap": "1GiB", "gradient_error": 0.1, "plan": path}
    outputs = torch.compile(model, backend=hilore, dynamic=False, options=options)(x)
    for found, value in zip(outputs, expected, strict=True):
        assert torch.allclose(found, value, rtol=1e-6, atol=1e-7)
    assert outputs[2].untyped_storage().data_ptr() == outputs[0].untyped_storage().data_ptr()
    assert outputs[3].data_ptr() == x.data_ptr()
    outputs[1].sum().backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert distance(found, gradients) <= 0.1
