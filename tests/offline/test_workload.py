"""What program a model's name stands for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hilore_planner.advice import Advice
from hilore_planner.errors import OptionError
from hilore_planner.offline.planner import Request, trace
from hilore_planner.offline.workload import Workload, fake_update
from hilore_planner.plan import PlacementPlan

TINY = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
}


def _workload(folder: Path, **fields: object) -> Workload:
    path = folder / "config.json"
    path.write_text(json.dumps(TINY | fields))
    return Workload(str(path), 2, 32, 96)


def _plan(workload: Workload) -> PlacementPlan:
    update = fake_update(workload)
    request = Request.parse(device="h200", optimizer="none")
    traced = trace(request, update.loss, *update.inputs)
    return traced.plan(traced.cap_bytes)


def _masks(plan: PlacementPlan) -> list[Advice]:
    return [advice for advice in plan.advice if "mask" in advice.what]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_plain_causal_attention_has_no_mask(family: str, tmp_path: Path) -> None:
    plan = _plan(_workload(tmp_path, model_type=family))
    assert plan.advice == ()
    assert any("cudnn_attention" in source.op for source in plan.sources.values())


def test_attention_in_windows_keeps_its_mask(tmp_path: Path) -> None:
    plan = _plan(_workload(tmp_path, model_type="mistral", sliding_window=48))
    (advice,) = _masks(plan)
    assert advice.count == 2
    assert advice.source.startswith("sdpa_attention.py:")


def test_nothing_is_allocated() -> None:
    update = fake_update(Workload("llama-3.1-405b", 1, 64, 64))
    assert update.parameters == pytest.approx(405.9e9, rel=1e-3)
    assert update.trained == update.parameters
    assert all(isinstance(value, torch._subclasses.FakeTensor) for value in update.inputs)


@pytest.mark.parametrize("field", ["sequences", "prompt", "response"])
def test_sizes_are_checked(field: str) -> None:
    changes: dict[str, Any] = {field: 0}
    with pytest.raises(OptionError, match=f"{field} is 0; accepted: 1 or more"):
        replace(Workload("qwen3-8b", 1, 1, 1), **changes)


def test_a_model_without_a_head_of_that_name(tmp_path: Path) -> None:
    workload = _workload(tmp_path, model_type="bert")
    with pytest.raises(OptionError, match="has no lm_head; accepted: causal language models"):
        fake_update(workload)
