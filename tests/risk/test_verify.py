"""Planned gradients against exact ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hilore_planner.errors import RegionError
from hilore_planner.plan import PlacementPlan
from hilore_planner.verification import GradientMatch, Verification, options_of, verify
from hilore_planner.verify_command import lines, record
from tests.backend.models import Dropped, Noisy, batch
from tests.plan_cases import toy_plan


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_compressed_plan_is_compared_module_by_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Dropped(dropout=0.0), batch(1024, 64)
    weight = model.layers[0].weight
    kept = torch.ones(64, 64)
    weight.grad = kept
    plan = tmp_path / "plan.json"
    # Five values of 256 KiB and 97 KiB of weights and gradients are 1377 KiB: something has to be small.
    options: dict[str, Any] = {"memory_cap": 1_300_000, "gradient_error": 0.02, "plan": str(plan)}
    options["codecs"] = ["int8"]
    found = verify(model, (x,), options)
    actions = set(found.plan.solution.placement.values())
    assert any(action.startswith("compress:") for action in actions), found.plan.summary()
    assert {match.module for match in found.modules} == {"layers.0", "layers.1", "layers.2"}
    assert sum(match.share for match in found.modules) == pytest.approx(1.0)
    assert 0 < found.total.relative_error < found.predicted_gradient_error
    assert found.total.cosine == pytest.approx(1.0, abs=1e-6)
    assert found.loss_difference == 0.0
    assert PlacementPlan.load(plan).measured.gradient_error == found.total.relative_error
    assert weight.grad is kept
    assert options_of(plan) == {**options, "reserved": 0}


def test_the_command_prints_what_was_found() -> None:
    plan = toy_plan()
    total = GradientMatch("", 0.0123, 0.99992, 1.0)
    part = GradientMatch("model.layers.0.mlp", 0.02, 0.9998, 0.75)
    found = Verification(total, (part,), 0.0, plan)
    predicted = f"{plan.predicted_gradient_error:.3g}"
    assert lines(found) == [
        f"gradient error 0.0123, predicted {predicted}; cosine 0.999920; loss differs by 0.0e+00",
        "   share      error     cosine  module",
        "   75.0%       0.02   0.999800  model.layers.0.mlp",
    ]
    assert record(found)["measured_gradient_error"] == 0.0123


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo itself asks for it
def test_an_update_with_graph_breaks_is_refused() -> None:
    with pytest.raises(RegionError, match="more than one region"):
        verify(Noisy(), (batch(256, 64),), {"memory_cap": "1GiB"})
