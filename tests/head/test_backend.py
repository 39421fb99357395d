"""A head's decision through the backend: compiled, written to the plan's file, and taken from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hilore_planner import partitioner
from hilore_planner.backend import hilore
from hilore_planner.grpo.head import log_probs
from hilore_planner.plan import PlacementPlan

ROWS, HIDDEN, VOCABULARY = 512, 8, 40_000
MIB = 2**20


def update(states: Tensor, head: Tensor, targets: Tensor, old: Tensor) -> Tensor:
    ratio = torch.exp(log_probs(torch.tanh(states), head, targets) - old)
    return -torch.minimum(ratio, ratio.clamp(0.8, 1.2)).mean()


def gradients(run: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(run(*inputs), inputs[:2])


def planned(path: Path, memory_cap: str) -> Any:
    torch._dynamo.reset()
    options: dict[str, Any] = {
        "plan": path,
        "memory_cap": memory_cap,
        "reserved": 0,
        "costs": "roofline",
    }
    return torch.compile(update, backend=hilore, options=options)


def test_a_decided_head_is_compiled_and_stays_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All logits take 78 MiB, half of them 39: under 64 MiB the head is cut in two."""
    torch.manual_seed(0)
    states, head = torch.randn(ROWS, HIDDEN), torch.randn(VOCABULARY, HIDDEN) / 3
    inputs = (
        states.requires_grad_(),
        head.requires_grad_(),
        torch.randint(VOCABULARY, (ROWS,)),
        torch.full((ROWS,), -10.5),
    )
    expected = gradients(update, inputs)
    found = gradients(planned(tmp_path / "plan.json", "64MiB"), inputs)
    torch.testing.assert_close(found, expected)
    plan = PlacementPlan.load(tmp_path / "plan.json")
    assert (plan.head.form, plan.head.chunks) == ("early", 2)
    assert [way.objective_ns is None for way in plan.head.ways] == [True, False]
    assert plan.predicted_peak_bytes <= 64 * MIB

    def decide(*_: object) -> None:
        raise AssertionError("the file has decided")

    monkeypatch.setattr(partitioner, "decide_head", decide)
    again = gradients(planned(tmp_path / "plan.json", "1GiB"), inputs)
    torch.testing.assert_close(again, expected)
