"""The parts of the risk benchmark; the whole of it is `hilore bench risk --setting tiny --device cpu`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.bench.risk.allocate import Form, allocate
from hilore_planner.bench.risk.plans import factors, unscaled_e4m3, without_margins
from hilore_planner.bench.risk.processes import Processes
from hilore_planner.bench.risk.setting import risk_setting_named
from hilore_planner.bench.risk.summary import summary
from hilore_planner.bench.risk.task import exposure_of, microbatch, new_model, train
from hilore_planner.calibration.profile import ClassRisk, RiskProfile
from hilore_planner.errors import OptionError

CPU = torch.device("cpu")
SHORT = replace(risk_setting_named("tiny"), train_steps=3)

ladders = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 0.9)), min_size=1, max_size=3).map(
    lambda steps: _ladder(steps)
)


def _ladder(steps: Sequence[tuple[int, float]]) -> list[Form]:
    """Ever larger and ever better, each step paying less than the last."""
    size, risk, drop = 1, 1.0, 1.0
    forms = [Form("0", size, risk)]
    for index, (more, factor) in enumerate(steps):
        drop *= factor
        size, risk = size + more, risk - more * drop * 0.01
        forms.append(Form(str(index + 1), size, risk))
    return forms


@given(units=st.dictionaries(st.text(), ladders, min_size=1, max_size=3), room=st.integers(0, 20))
def test_allocation_is_the_best_but_for_one_step(
    units: Mapping[str, Sequence[Form]], room: int
) -> None:
    least = sum(forms[0].kept_bytes for forms in units.values())
    chosen = allocate(units, least + room)
    picked = [forms[int(chosen[name])] for name, forms in units.items()]
    assert sum(form.kept_bytes for form in picked) <= least + room
    best = min(
        sum(form.risk for form in forms)
        for forms in itertools.product(*units.values())
        if sum(form.kept_bytes for form in forms) <= least + room
    )
    largest = max(
        (a.risk - b.risk for forms in units.values() for a, b in itertools.pairwise(forms)),
        default=0.0,
    )
    assert sum(form.risk for form in picked) <= best + largest + 1e-9


def test_microbatches_stand_in_order_of_exposure() -> None:
    model = new_model(SHORT, CPU)
    assert train(model, SHORT, CPU) > 0
    for one_winner in (False, True):
        batch = microbatch(model, SHORT, 7, CPU, one_winner=one_winner)
        found = exposure_of(*batch).sequence_squares
        advantages = batch.advantages.abs()
        assert bool((advantages.diff() <= 0).all())
        assert float(batch.advantages.sum()) == pytest.approx(0.0, abs=1e-5)
        assert bool(torch.isfinite(found).all())
    assert batch.advantages.tolist() == pytest.approx([2.4749 * 0.9997, *[-0.3535] * 7], rel=1e-3)
    again = microbatch(model, SHORT, 7, CPU, one_winner=True)
    assert torch.equal(again.ids, batch.ids)


def test_what_tiers_should_pay() -> None:
    winner = 7**2 / (7**2 + 7)  # advantages of one in eight are 7 to -1
    found = factors([winner, *[(1 - winner) / 7] * 7])
    assert found == pytest.approx(dict.fromkeys("2348", 2.07), abs=0.01)
    assert factors([0.125] * 8) == {"2": 1.0, "3": 1.0, "4": 1.0, "8": 1.0}


def test_the_papers_cast_has_no_scale() -> None:
    value = torch.tensor([1e-4, 1.0, 1e3])
    assert unscaled_e4m3(value).tolist() == [0.0, 1.0, 448.0]


def test_the_summary_counts_microbatches_in_budget() -> None:
    rows: list[dict[str, Any]] = [
        {
            "variant": "held out",
            "predicted_gradient_error": 0.01,
            "measured_gradient_error": 0.012,
            "measured_gradient_errors": [0.01, 0.02],
        },
        {"variant": "policy update", "error": "it failed"},
    ]
    assert summary(rows) == [
        "policy update: it failed",
        "held out: predicted / measured 0.01000 / 0.01200 = 0.83",
        "held out: 1 of 2 microbatches within 0.015",
    ]


def test_the_summary_compares_at_equal_memory() -> None:
    rows: list[dict[str, Any]] = [
        {"variant": "bytes of int8, blind", "measured_gradient_error": 0.02},
        {"variant": "bytes of int8, by exposure", "measured_gradient_error": 0.01},
    ]
    line = "bytes of int8, blind: 2.00 times the error of bytes of int8, by exposure"
    assert summary(rows) == [line]


def test_tiers_are_compared_without_margins() -> None:
    one = ClassRisk("mul", 0, 1, 2, {"int8": 1.0}, {"int8": 1e-4}, margin=9.0)
    profile = RiskProfile((one,), (one,), (), 2.0, 3.0, (), 1, ("int8",), "", "")
    found = without_margins(profile)
    assert (found.margin, found.kept[0].margin, found.rebuilt[0].margin) == (1.0, 1.0, 1.0)
    assert (found.additivity, found.kept[0].gains) == (2.0, {"int8": 1.0})


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(
        OptionError, match="unknown setting 'large'; accepted: tiny, small, trained"
    ):
        risk_setting_named("large")


def test_a_process_does_one_job_after_another() -> None:
    with contextlib.closing(Processes("tests.risk.echo", os.environ)) as processes:
        first, second = (processes.answer({"job": job}) for job in (1, 2))
        assert [first["job"], second["job"]] == [1, 2]
        assert first["process"] == second["process"]
        with ThreadPoolExecutor(1) as other:
            assert other.submit(processes.answer, {}).result()["process"] != first["process"]
        lost = processes.answer({"end": True})
        assert lost == {"error": "the process ended with status 3, without an answer"}
        assert processes.answer({"job": 3})["process"] != first["process"]
