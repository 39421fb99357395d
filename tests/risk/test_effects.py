"""Whether a class acts in proportion is found by doubling its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hilore_planner.calibration import effects
from hilore_planner.calibration.effects import Effect, Effects


@dataclass
class FakeBatch:
    """Squared gradient error as a function of the multiple of a copy's error."""

    of_factor: Callable[[float], float]
    is_half: bool = False
    is_finite: bool = True
    factors: list[float] = field(default_factory=list)

    def share(self, changes: dict[str, float]) -> float:
        factor = changes["u"]
        self.factors.append(factor)
        return self.of_factor(factor)


def _effects(
    monkeypatch: pytest.MonkeyPatch, of_factor: Callable[[float], float], **batch: Any
) -> tuple[Effects, FakeBatch]:
    """Of one unit, ``u``; a change is its factor."""

    @dataclass
    class Graph:
        units: dict[str, None] = field(default_factory=lambda: {"u": None})

    monkeypatch.setattr(effects, "codec_for", lambda unit, codec: codec)
    monkeypatch.setattr(effects, "change_by", lambda codec, factor, is_finite: factor)
    fake = FakeBatch(of_factor, **batch)
    return Effects(Graph(), fake), fake  # type: ignore[arg-type]


def test_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    found, batch = _effects(monkeypatch, lambda f: 1e-3 * f**2)
    assert found.of_class({"u": "int4"}) == Effect(1e-3, 1.0)
    assert batch.factors == [2.0, 1.0]
    assert found.share({"u": "int4"}) == 1e-3
    assert batch.factors == [2.0, 1.0]  # each thing once


def test_what_is_finer_than_what_was_in_proportion_is_measured_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, batch = _effects(monkeypatch, lambda f: 1e-3 * f**2)
    assert found.of_class({"u": "fp8_e4m3"}, tested=1.5) == Effect(1e-3, 1.0)
    assert found.of_class({"u": "int8[:1/4]+int4"}).share == 1e-3
    assert batch.factors == [1.0, 1.0]


def test_out_of_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = _effects(monkeypatch, lambda f: 1e-3 * f**2.2)
    assert found.of_class({"u": "int4"}) == Effect(1e-3, 1.0, is_proportional=False)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e30])
def test_a_gradient_that_is_lost_is_a_number(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    found, _ = _effects(monkeypatch, lambda f: wrong if f > 1 else 0.1)
    assert found.of_class({"u": "int4"}) == Effect(0.1, 1.0, is_proportional=False)
    always, _ = _effects(monkeypatch, lambda f: wrong)
    assert not always.of_class({"u": "int4"}).is_proportional


def test_what_matters_little_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, batch = _effects(monkeypatch, lambda f: 1e-5 * f**2)
    assert found.of_class({"u": "int4"}).share == pytest.approx(1e-5)
    assert batch.factors == [2.0]
    several, batch = _effects(monkeypatch, lambda f: 5e-4 * f**2)
    assert several.of_class({"u": "int4"}, [f"v{i}" for i in range(9)]).factor == 2.0
    assert several.of_class({"u": "int4"}, ["v0", "v1"]).factor == 1.0


def test_half_precision_is_tried_with_larger_errors_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """int8's error is magnified by 31, to 20%; less where that is out of proportion."""
    found, batch = _effects(monkeypatch, lambda f: 1e-3 * (f**2 + (f > 16) * f**4), is_half=True)
    effect = found.of_class({"u": "int8"})
    assert effect.is_proportional
    assert batch.factors == pytest.approx([30.77, 15.38, 7.69], abs=0.01)
    assert effect.factor == pytest.approx(15.38, abs=0.01)
    assert effect.share == pytest.approx(1e-3)
    sharp, _ = _effects(monkeypatch, lambda f: 1e-3 * f**4, is_half=True)
    assert not sharp.of_class({"u": "int8"}).is_proportional


def test_half_precision_is_magnified_as_far_as_it_is_known_to_be_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, batch = _effects(monkeypatch, lambda f: 1e-3 * f**2, is_half=True)
    effect = found.of_class({"u": "fp8_e4m3"}, tested=3.0)
    assert effect.share == pytest.approx(1e-3)
    assert effect.factor == 3.0
    assert found.of_class({"u": "fp8_e4m3"}, tested=30.0).factor == pytest.approx(7.72, abs=0.01)
    assert len(batch.factors) == 2


def test_what_rounding_does_to_a_placement_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once a batch; what is less than rounding shows nothing."""
    found, batch = _effects(monkeypatch, lambda f: 1e-5 * f**2 + 2e-5, is_half=True)
    assert found.of_placement({"u": "int4"}, ()) == pytest.approx(1e-5)
    assert batch.factors == pytest.approx([2.0, 0.5])
    assert found.of_placement({"u": "int8"}, ()) == pytest.approx(1e-5)
    assert batch.factors == pytest.approx([2.0, 0.5, 7.69], abs=0.01)
    hidden, _ = _effects(monkeypatch, lambda f: 1e-6 * f**2 + 2e-5, is_half=True)
    assert hidden.of_placement({"u": "int4"}, ()) == 0.0


@pytest.mark.parametrize(
    ("is_half", "codec", "factors"),
    [
        (False, "int4", [1.0]),
        (True, "int4", [2.0, 0.5]),
        (True, "int8", [7.69, 1.92]),
    ],
)
def test_whole_placements_are_lifted_out_of_rounding(
    monkeypatch: pytest.MonkeyPatch, is_half: bool, codec: str, factors: list[float]
) -> None:
    found, batch = _effects(monkeypatch, lambda f: 1e-5 * f**2, is_half=is_half)
    assert found.of_placement({"u": codec}, ()) == pytest.approx(1e-5)
    assert batch.factors == pytest.approx(factors, abs=0.01)
