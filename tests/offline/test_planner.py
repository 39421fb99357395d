from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hilore_planner as hilore
from hilore_planner.errors import InfeasibleError, OptionError, RegionError
from hilore_planner.passes import compat
from hilore_planner.passes.devices import PROFILES
from hilore_planner.plan import Figures, PlacementPlan
from tests.offline.updates import actor, plan_of_backend

CAP = "1GiB"


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).sum()  # type: ignore[no-any-return]


def test_the_plan_is_the_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"memory_cap": CAP, "gradient_error": 0.01, "codecs": ["int8"]}
    expected = plan_of_backend(actor(fake=False), monkeypatch, **options)
    for fake in (False, True):
        update = actor(fake=fake)
        found = hilore.plan(update.loss, *update.inputs, **options)
        assert found.problem == expected.problem
        assert found.sources == expected.sources
        assert found.fixed_parts == expected.fixed_parts
        assert found.vocabulary == expected.vocabulary
        assert found.predicted == expected.predicted
        assert found.solution.placement == expected.solution.placement
        assert found.provenance.fingerprint == expected.provenance.fingerprint
        assert found.provenance.options == expected.provenance.options | {"checked": "no"}


def test_the_backend_takes_an_offline_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    update = actor(fake=True)
    offline = hilore.plan(update.loss, *update.inputs, memory_cap=CAP)
    # Made for another device's memory: what surrounds the update there is no part of the plan.
    moved = [
        replace(position, fixed_bytes=position.fixed_bytes + 2**28)
        for position in offline.problem.positions
    ]
    moved_problem = replace(offline.problem, positions=tuple(moved))
    moved_peak = offline.solution.peak_bytes + 2**28
    moved_solution = replace(offline.solution, peak_bytes=moved_peak)
    replace(offline, problem=moved_problem, solution=moved_solution, predicted=Figures()).save(path)
    taken = plan_of_backend(actor(fake=False), monkeypatch, memory_cap=CAP, plan=str(path))
    assert taken.solution.placement == offline.solution.placement
    assert taken.solution.peak_bytes == offline.solution.peak_bytes
    assert "checked" not in taken.provenance.options


def test_planning_leaves_compiled_updates_alone_and_may_be_repeated() -> None:
    net, x = _Net(), torch.ones(4, 8)
    calls = []

    def counting(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        calls.append(gm)
        return gm.forward

    compiled = torch.compile(net, backend=counting, dynamic=False)
    before = compiled(x)
    # More often than Dynamo compiles one function (8) before it gives up.
    plans = [hilore.plan(net, x, memory_cap=CAP) for _ in range(9)]
    assert all(plan.problem == plans[0].problem for plan in plans)
    assert torch.equal(compiled(x), before)
    assert len(calls) == 1


@pytest.fixture(scope="module")
def on_h200() -> PlacementPlan:
    update = actor(fake=True, dtype=torch.bfloat16)
    return hilore.plan(update.loss, *update.inputs, device="h200", optimizer="adamw")


@pytest.fixture(scope="module")
def on_a100() -> PlacementPlan:
    update = actor(fake=True, dtype=torch.bfloat16)
    return hilore.plan(update.loss, *update.inputs, device="a100-40g", optimizer="adamw")


def test_a_named_device_gives_memory_rates_and_attention(
    on_h200: PlacementPlan, on_a100: PlacementPlan
) -> None:
    for plan, name in ((on_h200, "h200"), (on_a100, "a100-40g")):
        profile = PROFILES[name]
        assert plan.provenance.device == f"{name} (profile)"
        assert 0.97 < plan.problem.memory_cap_bytes / profile.total_bytes < 0.99
        attention = {s.op for s in plan.sources.values() if "scaled_dot_product" in s.op}
        assert f"_scaled_dot_product_{profile.attention}_attention[0]" in attention
        assert not any("cpu" in op for op in attention)
    assert on_h200.predicted.time_ns is not None
    assert on_a100.predicted.time_ns is not None
    assert on_h200.predicted.time_ns < on_a100.predicted.time_ns


def _net_plan(**options: Any) -> PlacementPlan:
    with compat.new_fake_mode():
        net, x = _Net(), torch.ones(4, 8)
    return hilore.plan(net, x, device="l40s", memory_cap="8GiB", **options)


def test_optimizer_state_is_counted() -> None:
    weights = sum(p.numel() * p.element_size() for p in _Net().parameters())
    states = []
    for name in ("none", "sgd", "rmsprop", "AdamW"):
        parts = {part.what: part.size_bytes for part in _net_plan(optimizer=name).fixed_parts}
        assert parts["weights"] == weights
        states.append(parts.get("optimizer state", 0))
    assert states == [0, 0, weights, 2 * weights]


def test_state_of_an_optimizer_there_is_counts_under_the_cap() -> None:
    without = _net_plan().problem.memory_cap_bytes
    net = _Net()
    optimizer = torch.optim.AdamW(net.parameters())
    weights = sum(p.numel() * p.element_size() for p in net.parameters())
    assert without - _net_plan().problem.memory_cap_bytes == 2 * weights
    del optimizer


def test_a_plan_is_saved_solved_and_swept(tmp_path: Path, on_h200: PlacementPlan) -> None:
    path = tmp_path / "plan.json"
    on_h200.save(path)
    loaded = PlacementPlan.load(path)
    assert loaded == on_h200
    assert loaded.provenance.options["checked"] == "no"
    nothing_fits = loaded.solve(memory_cap="1MiB", must_fit=False).solution
    assert nothing_fits.smallest_feasible_cap_bytes is not None
    tight = loaded.solve(memory_cap=nothing_fits.smallest_feasible_cap_bytes)
    assert "recompute" in tight.solution.placement.values()


def test_a_cap_that_nothing_fits() -> None:
    with pytest.raises(InfeasibleError) as found:
        hilore.plan(_Net(), torch.ones(4, 8), device="h200", memory_cap=2**10)
    assert (found.value.smallest_feasible_cap_bytes or 0) > 2**10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "h20"}, "unknown device profile 'h20'; did you mean 'h200'"),
        ({"device": "h200", "optimizer": "adanw"}, "'adanw'; did you mean 'adamw'.*none"),
        ({"optimizer": "adamw"}, "optimizer is 'adamw', but no device is named"),
        ({"plan": "plan.json"}, r"option plan is for compiling.*\.save\(path\)"),
        ({"memory_cup": 1}, "unknown option 'memory_cup'; did you mean 'memory_cap'"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        hilore.plan(_Net(), torch.ones(4, 8), **options)


def test_modules_methods_and_functions() -> None:
    net, x = _Net(), torch.ones(4, 8)
    plans = [hilore.plan(update, x) for update in (net, net.forward, lambda x: net(x))]
    names = [{unit.name for unit in plan.problem.units} for plan in plans]
    assert names[0] == names[1] == names[2] != set()


def test_an_update_that_is_no_single_graph() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos().sum()

    with pytest.raises(RegionError, match=r"does not trace as one graph: .*graph_break"):
        hilore.plan(update, torch.ones(4, requires_grad=True))


def test_an_update_without_a_backward() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    with pytest.raises(RegionError, match="nothing to plan: none of its inputs and parameters"):
        hilore.plan(update, torch.ones(4))


def test_meta_tensors_are_refused() -> None:
    with torch.device("meta"):
        net, x = _Net(), torch.ones(4, 8)
    with pytest.raises(RegionError, match=r"meta device.*make them fake tensors on the CPU"):
        hilore.plan(net, x)


def test_errors_of_the_program_itself_come_through() -> None:
    def update(x: torch.Tensor) -> torch.Tensor:
        return (x @ torch.ones(3)).sum()

    with pytest.raises(RegionError, match="inconsistent tensor size"):
        hilore.plan(update, torch.ones(4, requires_grad=True))


@pytest.mark.compat
def test_fake_tensors_need_no_mode_around_the_call() -> None:
    with compat.new_fake_mode():
        net, x = _Net(), torch.ones(4, 8)
    assert hilore.plan(net, x).problem.units
