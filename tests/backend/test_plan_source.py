"""Which plan file a region's plan comes from and goes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hilore_planner.backend import PlanSource, reset
from hilore_planner.costs import costs_for
from hilore_planner.options import Options
from hilore_planner.plan import PlacementPlan
from hilore_planner.region import surroundings
from tests.plan_cases import toy_plan


@pytest.fixture(autouse=True)
def _forget_regions() -> Iterator[None]:
    reset()
    yield
    reset()


def _of_graph(fingerprint: str) -> PlacementPlan:
    plan = toy_plan()
    return replace(plan, provenance=replace(plan.provenance, fingerprint=fingerprint))


def _source(path: Path, region: str) -> PlanSource:
    options, around = Options(plan=path), surroundings([])
    return PlanSource(options, around, region, costs_for(options, around))


def test_the_file_of_one_region_does_not_decide_for_another(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    first, second = _of_graph("first"), _of_graph("second")
    source = _source(path, "first")
    assert not source.is_given(first)
    source.write(first)
    assert source.is_given(first)
    other = _source(path, "second")
    assert not other.is_given(second)
    other.write(second)
    assert PlacementPlan.load(path).provenance.fingerprint == "first"
    assert PlacementPlan.load(tmp_path / "plan-2.json").provenance.fingerprint == "second"
