"""Which costs the option asks for, and that a plan is made with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hilore_planner.correction import Aim
from hilore_planner.costs import choice, costs_for
from hilore_planner.costs.measured import Measured
from hilore_planner.costs.sample import Run, Sample
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.costs.table import CostTable, Entry, Owner
from hilore_planner.errors import OptionError
from hilore_planner.options import Options
from hilore_planner.passes import compat
from hilore_planner.passes.cost import Roofline
from hilore_planner.planning import PlannedRegion, plan_region
from hilore_planner.posing import RegionProblems, pose
from hilore_planner.region import Surroundings, surroundings
from tests.costs.ready import Ready
from tests.passes.joint import cut, trace_update
from tests.passes.programs import Block, seeded

ABSENT = "NVIDIA of another machine"


@pytest.fixture
def around() -> Surroundings:
    return surroundings([torch.empty(4)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is measured; nothing really is, and files go to a folder of the test."""
    samples: list[str] = []

    class Script(Stopwatch):
        def ready(self, sample: Sample) -> Run:
            return Ready()

        def time_ns(self, sample: Sample, run: Run) -> int:
            samples.append(sample.what)
            return 5_000

    monkeypatch.setattr(choice, "Stopwatch", Script)
    monkeypatch.setattr(compat, "cache_folder", lambda: str(tmp_path))
    return samples


def options(costs: object) -> Options:
    return Options.parse({"costs": costs, "memory_cap": "1GiB"})


def planned(around: Surroundings, costs: object) -> PlannedRegion:
    traced = trace_update(seeded(Block), torch.randn(2, 64, 64, requires_grad=True))
    asked = options(costs)
    posed = pose(traced.joint(), RegionProblems(around, asked, costs_for(asked, around)))
    return plan_region(posed, region="toy", aim=Aim(2**30))


def test_the_cpu_is_estimated_unless_asked(around: Surroundings, asked: list[str]) -> None:
    assert isinstance(costs_for(options("auto"), around), Roofline)
    assert isinstance(costs_for(options("roofline"), around), Roofline)
    assert isinstance(costs_for(options("measured"), around), Measured)


def test_a_plan_is_made_with_measured_costs_and_says_so(
    around: Surroundings, asked: list[str]
) -> None:
    region = planned(around, "measured")
    assert region.plan.provenance.costs == "measured"
    file = choice.cost_file(around.device)
    table = CostTable.of_file(file)
    assert table.owner == Owner.of(around.device)
    assert any(what.startswith(("mm", "addmm")) for what in asked)
    count = len(asked)
    again = planned(around, "measured")
    assert len(asked) == count  # the second plan measures nothing
    assert again.plan.problem == region.plan.problem
    # Every piece takes 5 us here, so the rewritten graphs take at least that for each of their products.
    graphs = cut(again.graph, again.plan.solution.placement)
    timed = again.timed(graphs.forward, graphs.backward)
    products = [step for step in timed.steps if step.op in ("mm", "addmm")]
    assert products
    assert {step.ns for step in products} == {5_000}
    assert timed.plan.predicted.time_ns == sum(step.ns for step in timed.steps)


def test_a_file_of_another_device_is_read_and_never_extended(
    around: Surroundings, asked: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h200.json"
    CostTable(path, Owner(ABSENT, "2.11.0")).add({"key": Entry("mm", 7)})
    before = path.read_bytes()
    region = planned(around, str(path))
    assert region.plan.provenance.costs == "measured"
    assert (asked, path.read_bytes()) == ([], before)
    assert "priced by roofline" in caplog.text


def test_what_cannot_be_measured_here_is_refused(
    around: Surroundings, asked: list[str], tmp_path: Path
) -> None:
    elsewhere = replace(around, device=torch.device("cuda"), device_name=ABSENT)
    assert isinstance(costs_for(options("auto"), elsewhere), Roofline)
    with pytest.raises(OptionError, match=rf"costs is 'measured', but {ABSENT}"):
        costs_for(options("measured"), elsewhere)
    with pytest.raises(OptionError, match=r"none\.json.*is not there"):
        costs_for(options(tmp_path / "none.json"), elsewhere)
    with pytest.raises(
        OptionError, match=r"costs is 'guessed'.*'auto' \| 'measured' \| 'roofline'"
    ):
        options("guessed")
