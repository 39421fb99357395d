"""What is planned, what is not, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hilore_planner.backend import hilore
from hilore_planner.plan import PlacementPlan
from tests.backend.models import Dropped, Narrow, Noisy, Running, batch
from tests.backend.updates import compiled, distance, planned, span, unplanned


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo itself asks for it
def test_a_graph_break_makes_two_planned_regions(capfd: pytest.CaptureFixture[str]) -> None:
    model, x = Noisy(), batch(256, 64)
    _, gradients = unplanned(model, x).kept_step()
    found = compiled(model, x, memory_cap="1GiB").step()[1]
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hilore:")]
    assert [line.rsplit("; ", 1)[1] for line in lines] == [
        "planned 1 of 1 regions",
        "planned 2 of 2 regions",
    ]
    assert all("models.py:" in line for line in lines)
    assert distance(found, gradients) < 3e-6


def test_a_forward_alone_is_compiled_and_not_planned(capfd: pytest.CaptureFixture[str]) -> None:
    model, x = Narrow(), batch(256, 64)
    update = compiled(model, x)
    with torch.no_grad():
        found = update.compiled(x)
        assert torch.allclose(found, model(x), rtol=1e-5)
    assert "hilore:" not in capfd.readouterr().err


def test_another_length_is_served_too(tmp_path: Path) -> None:
    model = Narrow()
    path = tmp_path / "plan.json"
    update = compiled(model, batch(256, 64), dynamic=True, memory_cap="1GiB", plan=path)
    update.step()
    plan = PlacementPlan.load(path)
    for rows in (384, 512):
        x = batch(rows, 64)
        model.zero_grad(set_to_none=True)
        update.compiled(x).backward()  # type: ignore[no-untyped-call]
        found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        model(x).backward()
        expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert distance(found, expected) < 3e-6
    names = {unit.name for unit in plan.problem.units}
    for other in tmp_path.glob("plan*.json"):
        assert {unit.name for unit in PlacementPlan.load(other).problem.units} == names


def test_a_buffer_is_updated_once_and_read_as_it_was(tmp_path: Path) -> None:
    x = batch(1024, 64)

    def fresh() -> Running:
        torch.manual_seed(0)
        return Running()

    eager = fresh()
    for _ in range(3):
        eager.zero_grad()
        eager(x).backward()
    expected = {n: p.grad for n, p in eager.named_parameters() if p.grad is not None}
    roomy = planned(tmp_path, fresh(), x, memory_cap="1GiB")
    base, peak = span(roomy)
    model = fresh()
    tight = planned(tmp_path, model, x, memory_cap=base + int(0.9 * (peak - base)))
    assert "recompute" in tight.actions
    for _ in range(2):
        found = tight.update.step()[1]
    assert torch.allclose(model.average, eager.average, rtol=1e-6)
    assert distance(found, expected) < 3e-6


def test_the_smallest_cap_that_an_error_names_is_enough(tmp_path: Path) -> None:
    from hilore_planner.errors import InfeasibleError

    model, x = Dropped(dropout=0.0), batch(1024, 64)
    roomy = planned(tmp_path, model, x, memory_cap="1GiB")
    base, peak = span(roomy)
    with pytest.raises(InfeasibleError, match="smallest cap") as caught:
        compiled(model, x, memory_cap=base + 70_000).step()
    error = caught.value
    smallest = error.smallest_feasible_cap_bytes
    assert smallest is not None
    assert base + 70_000 < smallest < peak
    assert str(smallest) in str(error)
    assert error.holding
    assert set(error.holding) <= {unit.name for unit in roomy.plan.problem.units}
    result = planned(tmp_path, model, x, memory_cap=smallest)
    assert result.plan.predicted_peak_bytes <= smallest
    assert distance(result.gradients, roomy.gradients) < 3e-6


def test_the_backend_is_found_by_its_name() -> None:
    from importlib.metadata import entry_points

    if not entry_points(group="torch_dynamo_backends", name="hilore"):
        pytest.skip("the package is not installed: only its source is on the path")
    assert torch._dynamo.lookup_backend("hilore") is hilore
