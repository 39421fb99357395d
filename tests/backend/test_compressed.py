"""Smaller copies change the gradient alone, and by no more than asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hilore_planner.backend import hilore
from tests.backend.models import Dropped, batch
from tests.backend.updates import distance, planned, span, unplanned

pytestmark = pytest.mark.compat


def test_the_forward_is_unchanged_and_the_gradient_within_its_budget(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Dropped(dropout=0.0), batch(1024, 64)
    loss, gradients = unplanned(model, x).kept_step()
    roomy = planned(tmp_path, model, x, memory_cap="1GiB")
    base, peak = span(roomy)
    result = planned(
        tmp_path, model, x, memory_cap=base + int(0.75 * (peak - base)), gradient_error=0.02
    )
    assert any(action.startswith("compress:") for action in result.actions), result.plan.summary()
    assert torch.equal(result.loss, loss)
    error = distance(result.gradients, gradients)
    assert 0 < error <= result.plan.predicted_gradient_error <= 0.02


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
