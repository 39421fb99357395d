"""Predicted against measured peaks of compiled updates on the CPU; what kernels compute is of no account."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from hilore_planner.peak import measured_peak_bytes
from tests.kernels import without_kernels
from tests.peak.programs import (
    Attention,
    Compiled,
    LanguageModel,
    MeanSquare,
    Mlp,
    Mutating,
    compiled,
)

pytestmark = pytest.mark.compat

CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "mlp_dropout": lambda: (
        nn.Sequential(Mlp(dropout=0.1), Mlp(), MeanSquare()),
        torch.randn(512, 128),
    ),
    "attention": lambda: (nn.Sequential(Attention(), MeanSquare()), torch.randn(2, 256, 128)),
    "language_model": lambda: (LanguageModel(), torch.randint(1024, (2, 256))),
    "mutating": lambda: (Mutating(), torch.randn(512, 128)),
}


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compiled]:
    torch.manual_seed(0)
    model, inputs = CASES[request.param]()
    with without_kernels(tmp_path_factory.mktemp("wrappers")):
        yield compiled(model, [inputs])


def test_the_update_peak_is_predicted_to_the_byte(case: Compiled) -> None:
    predicted = case.predicted()
    assert predicted.peak_bytes - predicted.base_bytes == case.measured_bytes()


def test_gradients_that_are_there_are_added_to_in_place(case: Compiled) -> None:
    case.accumulate()
    measured = measured_peak_bytes(case.accumulate, "cpu").added_bytes
    predicted = case.predicted()
    assert predicted.peak_bytes - predicted.base_bytes == measured


def test_owners_at_the_peak_add_up_to_it(case: Compiled) -> None:
    predicted = case.predicted()
    assert sum(owner.counted_bytes for owner in predicted.owners) == predicted.peak_bytes
    line = predicted.forward if predicted.phase == "forward" else predicted.backward
    assert max(moment.allocated_bytes for moment in line.moments) == line.peak_bytes
    assert line.peak_label
