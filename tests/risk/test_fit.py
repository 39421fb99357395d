"""Gains fitted to whole placements are those that placements are chosen by, not those that luck made small."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hilore_planner.calibration.fit import (
    Observations,
    beyond_usual,
    spread_of,
    student_quantile,
    upper_factor,
)

CLASSES, BATCHES, TRIALS = 40, 8, 4


def _cheapest(gains: Tensor, noise: torch.Generator) -> Tensor:
    """Ones for the third of some classes that seem to risk least, as a solver picks; zeros for the others."""
    offered = torch.rand(CLASSES, generator=noise) < 0.6
    found = torch.zeros(CLASSES, dtype=torch.float64)
    found[torch.where(offered, gains, torch.inf).argsort()[: CLASSES // 3]] = 1.0
    return found


def test_what_was_measured_too_low_is_put_right() -> None:
    noise = torch.Generator().manual_seed(0)
    true = torch.randn(CLASSES, generator=noise, dtype=torch.float64).mul(0.5).exp()
    measured = true * torch.randn(CLASSES, generator=noise, dtype=torch.float64).mul(0.4).exp()
    chosen = [_cheapest(measured, noise) for _ in range(BATCHES * TRIALS)]
    seen = Observations(
        torch.stack([chosen_ * measured for chosen_ in chosen]),
        torch.stack([chosen_ @ true for chosen_ in chosen])
        * torch.randn(len(chosen), generator=noise).mul(0.2).exp(),
        torch.arange(BATCHES).repeat_interleave(TRIALS),
    )
    factors, common = seen.factors()
    fitted = measured * factors * common
    others = torch.stack([_cheapest(fitted, noise) for _ in range(50)])
    curse = torch.stack([_cheapest(measured, noise) for _ in range(50)])
    assert float((curse @ measured / (curse @ true)).mean()) < 0.85
    ratios = others @ fitted / (others @ true)
    assert float(ratios.mean()) == pytest.approx(1.0, abs=0.1)
    assert float((ratios - 1).abs().max()) < 0.2


def test_a_batch_that_differs_is_not_explained_by_itself() -> None:
    parts = torch.ones(BATCHES * TRIALS, 3, dtype=torch.float64)
    batches = torch.arange(BATCHES).repeat_interleave(TRIALS)
    measured = parts.sum(1) * torch.where(batches == 0, 3.0, 1.0)
    ratios = Observations(parts, measured, batches).unseen_ratios()
    assert ratios[:TRIALS] == pytest.approx([3.0] * TRIALS)
    assert max(ratios[TRIALS:]) < 1.0


def test_a_placement_beyond_all_proportion_moves_little() -> None:
    noise = torch.Generator().manual_seed(1)
    count = BATCHES * TRIALS
    parts = torch.rand(count, 5, generator=noise, dtype=torch.float64)
    measured = parts.sum(1) * torch.randn(count, generator=noise).mul(0.2).exp()
    batches = torch.arange(BATCHES).repeat_interleave(TRIALS)
    middle, spread = spread_of(measured / parts.sum(1))
    assert middle == pytest.approx(0.0, abs=0.1)
    assert spread == pytest.approx(0.2, rel=0.3)
    measured[3] *= 500
    factors, common = Observations(parts, measured, batches).factors()
    predicted = parts @ factors * common
    assert float((predicted / parts.sum(1) - 1).abs().max()) < 0.25
    assert spread_of(measured / predicted)[1] < 0.4


def test_without_placements_gains_stay() -> None:
    none = Observations(torch.empty(0, 3).double(), torch.empty(0).double(), torch.empty(0))
    factors, common = none.factors()
    assert factors.tolist() == [1.0] * 3
    assert common == 1.0
    assert none.unseen_ratios() == []


@pytest.mark.parametrize(
    ("chance", "freedom", "known"),
    [(0.999, 4, 7.173), (0.999, 10, 4.144), (0.999, 30, 3.385), (0.95, 5, 2.015)],
)
def test_students_quantiles_are_those_of_the_tables(
    chance: float, freedom: int, known: float
) -> None:
    assert student_quantile(chance, freedom) == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize("batches", [4, 8, 16])
def test_hardly_any_new_batch_is_beyond_the_margin(batches: int) -> None:
    """Batches that differ as much as measured ones did, or twice as much, and placements within them."""
    noise = torch.Generator().manual_seed(batches)

    def draw(count: int, spread: float) -> Tensor:
        of_batches = torch.randn(count, 1, generator=noise)
        return (spread * (of_batches + torch.randn(count, TRIALS, generator=noise))).exp()

    beyond, times = 0.0, 400
    for _ in range(times):
        for spread in (0.2, 0.4):
            margin = upper_factor(draw(batches, spread).flatten().tolist(), batches)
            beyond += float((draw(50, spread) > margin).double().mean()) / (2 * times)
    assert beyond < 2e-3


def test_more_batches_need_less_margin() -> None:
    ratios = [0.8, 1.25] * 8
    margins = [upper_factor(ratios, batches) for batches in (1, 2, 4, 8, 16)]
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] > 1.25


def test_a_class_that_differs_more_between_batches_has_a_margin_of_its_own() -> None:
    """So do six in a hundred of those with two thirds of the usual spread, by chance."""
    noise = torch.Generator().manual_seed(0)
    draws = torch.randn(500, 5, generator=noise, dtype=torch.float64)
    usual = [beyond_usual((0.2 * row).tolist()) for row in draws]
    wild = [beyond_usual((1.4 * row).tolist()) for row in draws]
    assert sum(factor == 1.0 for factor in usual) > 450
    limits = 3 * torch.tensor(wild, dtype=torch.float64)
    new = (1.4 * torch.randn(500, 100, generator=noise, dtype=torch.float64)).exp()
    assert float((new > limits[:, None]).double().mean()) < 0.01
    assert beyond_usual([3.0]) == beyond_usual([]) == 1.0
