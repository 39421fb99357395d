"""``hilore.profile`` and ``hilore explain --profile`` on a small update."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hilore_planner
from hilore_planner.attribution import LAUNCHES, STEPS, read_launches, read_steps
from hilore_planner.backend import hilore as backend
from hilore_planner.profiling import NAMED_KERNELS, _device_us
from tests.command_line import Run, runner
from tests.passes.programs import Block, seeded


@pytest.fixture
def hilore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


def test_a_profiled_update_is_compared_with_its_plan(hilore: Run, tmp_path: Path) -> None:
    dump, plan = tmp_path / "dump", tmp_path / "plan.json"
    options: dict[str, Any] = {"plan": str(plan), "dump_dir": str(dump)}
    options["inductor"] = NAMED_KERNELS | {"fx_graph_cache": False}
    model: Any = seeded(Block)

    def update(x: torch.Tensor) -> Any:
        return model(x).square().mean()

    loss = torch.compile(update, backend=backend, options=options)
    x = torch.randn(2, 64, 64)
    loss(x).backward()

    refused = hilore("explain", plan, "--profile", dump)
    assert refused.code == 1
    assert f"has no {LAUNCHES}" in refused.err
    hilore_planner.profile(lambda: loss(x).backward(), dump)
    launched = read_launches(dump)
    (steps,) = read_steps(dump)
    assert any(launch.is_generated for launch in launched)
    assert any(step.source.startswith("programs.py:") for step in steps.steps)

    record = json.loads(hilore("explain", plan, "--profile", dump, "--json").out)["profile"]
    assert record["measured_time_ns"] == sum(launch.ns for launch in launched)
    assert record["predicted_time_ns"] == sum(step.ns for step in steps.steps)
    assert {"product", "attention", "fused"} <= record["kinds"].keys()
    shown = hilore("explain", plan, "--profile", dump).out
    assert "Time on the device, predicted and measured" in shown
    assert "programs.py:" in shown

    (dump / LAUNCHES).write_text("[{}]")
    assert f"{LAUNCHES} is damaged" in hilore("explain", plan, "--profile", dump).err
    assert f"has no {STEPS}" in hilore("explain", plan, "--profile", tmp_path / "none").err


def test_a_kernel_counts_once_though_a_runtime_call_has_its_operators_number() -> None:
    def event(name: str, *kernels_us: float, children: tuple[Any, ...] = ()) -> Any:
        kernels = [SimpleNamespace(duration=us) for us in kernels_us]
        return SimpleNamespace(name=name, kernels=kernels, cpu_children=children)

    launch = event("cudaLaunchKernelExC", 400.0)
    product = event("aten::mm", 380.0, 20.0, children=(launch,))
    assert _device_us(product) == 400.0
    assert (
        _device_us(event("aten::linear", children=(product, event("cuLaunchKernel", 7.0)))) == 400.0
    )
