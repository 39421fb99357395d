"""Problems are raised as what they are, from the first call, and nothing runs unplanned instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hilore_planner.errors import HiloreError, InfeasibleError, OptionError, PlanFileError
from hilore_planner.plan import PlacementPlan
from tests.backend.models import Narrow, batch
from tests.backend.updates import compiled, distance, planned
from tests.kernels import without_kernels

pytestmark = pytest.mark.compat


class _Other(nn.Module):
    """A graph of another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.sigmoid(self.up(x)).square().mean()
        return out


@pytest.fixture(params=[False, True], ids=["strict", "suppressed"])
def suppress(request: pytest.FixtureRequest) -> Any:
    """Also where Dynamo is told to run eagerly whatever a backend cannot compile."""
    with torch._dynamo.config.patch(suppress_errors=request.param):
        yield


@pytest.fixture(scope="module")
def plan_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plans")
    with without_kernels(folder / "wrappers"):
        planned(folder, Narrow(), batch(256, 64), memory_cap="1GiB")
    return (folder / "plan.json").read_text()


def _refused(model: nn.Module, **options: Any) -> HiloreError:
    x = batch(256, 64)
    update = compiled(model, x, **options)
    with pytest.raises(HiloreError) as caught:
        update.compiled(x)
    with pytest.raises(type(caught.value)):
        update.compiled(x)
    return caught.value


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_cpa": "1GiB"}, ["'memory_cpa'", "memory_cap"]),
        ({"memory_cap": "20 gigs"}, ["'20 gigs'"]),
        ({"codecs": ["int3"]}, ["'int3'", "int8"]),
        ({"memory_cap": 1}, ["1"]),
    ],
)
def test_options_that_cannot_be_read(
    suppress: None, options: dict[str, object], words: list[str]
) -> None:
    error = _refused(Narrow(), **options)
    assert isinstance(error, (OptionError, InfeasibleError))
    assert all(word in str(error) for word in words), str(error)


@pytest.mark.usefixtures("no_kernels")
def test_a_cap_that_nothing_fits(suppress: None) -> None:
    error = _refused(Narrow(), memory_cap=200_000)
    assert isinstance(error, InfeasibleError)
    assert error.smallest_feasible_cap_bytes is not None
    assert str(error.smallest_feasible_cap_bytes) in str(error)
    assert error.holding
    assert error.holding[0] in str(error)


def test_a_plan_for_another_graph(suppress: None, tmp_path: Path, plan_text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_text)
    error = _refused(_Other(), memory_cap="1GiB", plan=path)
    assert isinstance(error, PlanFileError)
    assert "on_mismatch='replan'" in str(error)
    assert path.read_text() == plan_text


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: "", "empty"),
        (lambda text: text.replace('"store"', '"stow"', 1), "stow"),
        (lambda text: text.replace('"kept_bytes": ', '"kept_bytes": -', 1), "kept_bytes"),
    ],
)
def test_a_plan_file_that_was_damaged(
    suppress: None, tmp_path: Path, plan_text: str, spoil: Any, words: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(spoil(plan_text))
    assert path.read_text() != plan_text
    error = _refused(Narrow(), memory_cap="1GiB", plan=path)
    assert isinstance(error, PlanFileError)
    assert words in str(error)


def test_replan_replaces_a_foreign_plan(tmp_path: Path, plan_text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_text)
    model, x = _Other(), batch(256, 64)
    update = compiled(model, x, memory_cap="1GiB", plan=path, on_mismatch="replan")
    _, found = update.kept_step()
    model.zero_grad()
    model(x).backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert distance(found, expected) < 3e-6
    old = json.loads(plan_text)["provenance"]["fingerprint"]
    assert PlacementPlan.load(path).provenance.fingerprint != old


@pytest.mark.usefixtures("no_kernels")
def test_a_plan_that_fits_is_used_as_it_is(tmp_path: Path, plan_text: str) -> None:
    """Edited by hand to keep less, it is obeyed."""
    raw = json.loads(plan_text)
    path = tmp_path / "plan.json"
    path.write_text(plan_text)
    placement = PlacementPlan.load(path).solution.placement
    assert raw["solution"]["placement"] == placement
    result = compiled(Narrow(), batch(256, 64), memory_cap="1GiB", plan=path)
    result.step()
    assert path.read_text() == plan_text
