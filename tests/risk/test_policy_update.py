"""For each microbatch the fastest plan in budget, chosen before its forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.exposure import Exposure, exposure
from hilore_planner.grpo.registry import make_loss
from hilore_planner.plan import PlacementPlan
from hilore_planner.policy_update import Level, PolicyUpdate, _check_tiers
from tests.backend.models import Dropped, batch
from tests.plan_cases import toy_plan

GRPO = make_loss("trl/grpo")
BUDGET = 0.015


def exposed(advantages: Tensor) -> Exposure:
    mask = torch.ones(len(advantages), 4)
    return exposure(GRPO, LossBatch(advantages=advantages, mask=mask))


def level(name: str, added_ns: int, gradient_error: float, *risks: float) -> Level:
    def run(*_: Any) -> str:
        return name

    made = toy_plan()
    solution = replace(made.solution, objective_ns=added_ns)
    return Level(gradient_error, run, replace(made, solution=solution, sequence_risks=tuple(risks)))


@pytest.fixture
def table() -> PolicyUpdate:
    """Plans for four sequences: frugal in the last ones, alike in all, and exact."""
    update = PolicyUpdate(exposed, gradient_error=BUDGET, exposure_of=exposed)
    update._levels = (
        level("tiered", 10, 0.03, 1e-4, 1e-4, 1e-3, 1e-3),
        level("uniform", 20, 0.015, 2e-4),
        level("exact", 90, 0.0, 0.0),
    )
    return update


def test_the_fastest_plan_in_budget_runs(table: PolicyUpdate) -> None:
    assert table(torch.tensor([2.0, 1.0, 0.1, -0.1])) == "tiered"
    assert table.last is not None
    squares = torch.tensor([4.0, 1.0, 0.01, 0.01])
    expected = float((squares / squares.sum()) @ torch.tensor([1e-4, 1e-4, 1e-3, 1e-3])) ** 0.5
    assert table.last.predicted_gradient_error == pytest.approx(expected, rel=1e-5)
    assert table(torch.tensor([0.1, 0.1, 2.0, -1.0])) == "uniform"
    assert table.last.reason == "the fastest in budget; 1 faster would risk more"
    assert table.metrics() == pytest.approx(
        {
            "hilore/microbatches": 2,
            "hilore/microbatches_at_0.03": 1,
            "hilore/microbatches_at_0.015": 1,
            "hilore/microbatches_unsure": 0,
            "hilore/predicted_gradient_error": (expected + 2e-4**0.5) / 2,
        }
    )


def test_tiers_without_their_risks_are_refused() -> None:
    made = toy_plan()
    placement = dict.fromkeys(made.solution.placement, "compress:int8[:1/4]+int4")
    tiered = replace(made, solution=replace(made.solution, placement=placement))
    with pytest.raises(OptionError, match=r"plan a\.json keeps sequences by tiers"):
        _check_tiers(replace(tiered, sequence_risks=()), Path("a.json"))
    _check_tiers(replace(tiered, sequence_risks=(1e-4, 1e-3)), Path("a.json"))
    _check_tiers(replace(made, sequence_risks=()), Path("a.json"))


@pytest.mark.parametrize(
    ("advantages", "reason"),
    [
        ([1.0, float("nan"), 0.0, 0.0], "accepted: a finite"),
        ([1.0, float("inf"), 0.0, 0.0], "accepted: a finite"),
        ([1.0, 2.0], "accepted: the 4 the plans' tiers are for"),
    ],
)
def test_exact_when_unsure(table: PolicyUpdate, advantages: list[float], reason: str) -> None:
    assert table(torch.tensor(advantages)) == "exact"
    assert table.last is not None
    assert table.last.reason.startswith("exact: ")
    assert reason in table.last.reason
    assert not table.last.is_sure
    assert table.metrics()["hilore/microbatches_unsure"] == 1


def test_a_loss_that_is_not_known_before_the_forward_runs_exactly(table: PolicyUpdate) -> None:
    quantile = make_loss("trl/dapo", top_entropy_quantile=0.2)

    def unknown(advantages: Tensor) -> Exposure:
        return exposure(quantile, LossBatch(advantages=advantages, mask=torch.ones(4, 4)))

    table._exposure_of = unknown
    assert table(torch.ones(4)) == "exact"
    assert table.last is not None
    assert "only the forward's numbers fix" in table.last.reason


def test_nothing_exposed_is_shared_evenly(table: PolicyUpdate) -> None:
    """Reward 0 or 1 in all of a group: no gradient, so every plan is right; shares are not 0/0."""
    table(torch.zeros(4))
    assert table.last is not None
    assert table.last.is_sure


def test_constant_rewards_under_a_kl_term_are_exposed(table: PolicyUpdate) -> None:
    """Shares come from the final coefficients, never from the advantage."""
    kl = make_loss("trl/dapo", beta=0.04)
    old = torch.zeros(4, 4)
    apart = torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None].expand(4, 4)

    def exposed_to_kl(advantages: Tensor) -> Exposure:
        numbers = LossBatch(
            advantages=advantages,
            mask=torch.ones(4, 4),
            old_log_probs=old - 1,
            ref_log_probs=old - 1 - apart,
        )
        return exposure(kl, numbers)

    table._exposure_of = exposed_to_kl
    assert table(torch.zeros(4)) == "uniform"  # the exposure is where the tiered plan is frugal


def test_options_that_are_chosen_are_refused() -> None:
    for name, value in (("plan", "a.json"), ("gradient_error", 0.1)):
        with pytest.raises(OptionError, match=f"option {name} is"):
            PolicyUpdate(exposed, gradient_error=BUDGET, options={name: value})
    with pytest.raises(OptionError, match="gradient_error is 2"):
        PolicyUpdate(exposed, gradient_error=2)


@pytest.mark.usefixtures("no_kernels")
def test_plans_are_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hilore_planner.policy_update._LEVELS", (1.0,))  # each takes seconds
    model, x = Dropped(dropout=0.0), batch(1024, 64)

    def update(x: Tensor) -> Tensor:
        loss: Tensor = model(x)
        return loss

    torch._dynamo.reset()
    options = {"memory_cap": 1_400_000, "codecs": ["int8"]}
    planned = PolicyUpdate(update, gradient_error=0.01, options=options, folder=tmp_path)
    first, second = planned(x), planned(x)
    torch.autograd.backward(second)
    torch.autograd.backward(first)
    assert all(p.grad is not None for p in model.parameters())
    kept = {PlacementPlan.load(path).problem.gradient_error for path in tmp_path.iterdir()}
    assert kept == {0.0, 0.01}
    assert 0.0 in {one.gradient_error for one in planned.levels}
    assert [one.added_ns for one in planned.levels] == sorted(
        one.added_ns for one in planned.levels
    )
    assert planned.last is not None
    assert planned.levels[planned.last.level].risk([]) <= 0.01**2
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    torch._dynamo.reset()
