"""Times of a plan corrected by a profile, and what that changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hilore_planner.attribution import LAUNCHES, STEPS, Difference, DumpedSteps, Launch, PricedStep
from hilore_planner.plan import PlacementPlan
from hilore_planner.refine import refined
from tests.command_line import runner
from tests.plan_cases import toy_plan

SLOW_PRODUCTS = (
    Difference("mm", "product", 10, predicted_ns=10_000, measured_ns=25_000, kernels=("mm",)),
    Difference("norm", "fused", 10, predicted_ns=10_000, measured_ns=5_000, kernels=("triton_",)),
)


def test_every_kind_takes_what_it_took() -> None:
    plan = toy_plan()
    found = refined(plan, SLOW_PRODUCTS)
    for before, after in zip(plan.problem.units, found.problem.units, strict=True):
        factor = 2.5 if plan.sources[before.name].op == "mm" else 0.5
        assert after.recompute_ns == round(before.recompute_ns * factor)
        assert after.keep_ns == before.keep_ns // 2
        assert [form.encode_ns for form in after.codecs] == [
            f.encode_ns // 2 for f in before.codecs
        ]
    assert found.predicted.time_ns == 30_000
    assert found.solution.placement == plan.solution.placement
    assert found.solution.objective_ns < plan.solution.objective_ns  # it rebuilds nothing but norms


def test_kinds_that_did_not_run_keep_their_times() -> None:
    plan = toy_plan()
    assert refined(plan, SLOW_PRODUCTS[1:]).problem.units[1].recompute_ns == 900_000


def test_a_plan_is_solved_again_with_measured_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of half the size are cheap until they are measured; then products are run again instead."""
    plan, out = tmp_path / "plan.json", tmp_path / "out.json"
    toy_plan().save(plan)
    steps = (PricedStep("mm", "mm", ((8, 8), (8, 8)), 1_000), PricedStep("", "copy", (), 1_000))
    launched = (Launch("mm", ((8, 8), (8, 8)), 100), Launch("triton_poi_0", (), 1_000_000))
    (tmp_path / STEPS).write_bytes(msgspec.json.encode(DumpedSteps(0.0, 0.0, steps)))
    (tmp_path / LAUNCHES).write_bytes(msgspec.json.encode(launched))
    hilore = runner(capsys, monkeypatch)
    actions = []
    for profile in ([], ["--profile", tmp_path]):
        assert hilore("solve", plan, "--memory-cap", "450MiB", *profile, "-o", out).code == 0
        actions.append(sorted(PlacementPlan.load(out).solution.placement.values()))
    copied, rebuilt = (
        [a.count(action) for a in actions] for action in ("compress:fp8_e4m3", "recompute")
    )
    assert copied[0] > copied[1]
    assert rebuilt[0] < rebuilt[1]
