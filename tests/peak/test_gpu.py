"""Predicted against measured peak on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from hilore_planner.peak import external_memory, step_peak
from hilore_planner.peak.check import compiled_update, report
from hilore_planner.peak.model import Shape
from hilore_planner.peak.workspace import MeasuredWorkspaces, blas_workspace_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_the_peak_is_predicted_within_three_parts_in_a_thousand_and_never_below() -> None:
    device = torch.device("cuda")
    # Of blocks that other tests left in the cache a larger one may be taken whole, which counts as all of it.
    torch.cuda.empty_cache()
    update = compiled_update(Shape(layers=2), device, torch.bfloat16)
    peak = step_peak(
        update.forward,
        update.backward,
        update.forward.example_inputs,
        device=device,
        updates=2,
        workspaces=MeasuredWorkspaces(device),
    )
    result = report(update, device, peak)
    assert 1.0 <= result["update"]["ratio_total"] <= 1.003
    assert 1.0 <= result["forward"]["ratio_total"] <= 1.003


def test_memory_of_a_device_adds_up() -> None:
    held = torch.empty(1 << 20, device="cuda")
    memory = external_memory("cuda")
    parts = memory.allocated_bytes + memory.cached_bytes + memory.others_bytes + memory.free_bytes
    assert parts == memory.total_bytes
    assert memory.allocated_bytes >= held.untyped_storage().nbytes()


def test_a_blas_handle_keeps_a_workspace() -> None:
    assert blas_workspace_bytes("cuda") > 0
    assert blas_workspace_bytes("cuda") == blas_workspace_bytes("cuda")
