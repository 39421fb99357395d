"""What stands before a call that is timed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hilore_planner.costs.lead import Leads
from hilore_planner.costs.load import Copies

CACHED_BYTES = 8192


@pytest.fixture(scope="module")
def leads() -> Leads:
    return Leads(Copies(torch.device("cpu")), CACHED_BYTES)


def test_the_largest_input_is_written_and_stays_what_it_is(leads: Leads) -> None:
    wide = torch.randn(32, 64)
    strided = wide[:, ::4]  # spans 31 whole rows and 61 elements of the last
    expected, version = wide.clone(), wide._version
    lead = leads.of([torch.ones(3), strided.mT])
    lead.run()
    assert lead.moved_bytes == 4 * (31 * 64 + 61)
    assert torch.equal(wide, expected)
    assert wide._version > version


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ([], "there is none"),
        ([torch.ones(CACHED_BYTES // 4 + 1)], "it does not fit"),
        ([torch.ones(8), torch.ones(CACHED_BYTES // 4 + 1)], "the largest does not fit"),
        ([torch.ones(64, dtype=torch.int64), torch.ones(8)], "it is no value"),
        ([torch.ones(64).to(torch.float8_e4m3fn), torch.ones(8)], "it was kept"),
        ([torch.ones(0)], "it is empty"),
    ],
)
def test_otherwise_nothing_is_in_the_cache(leads: Leads, inputs: list[Tensor], why: str) -> None:
    assert leads.of(inputs) is leads.whole, why


def test_a_repeated_input_is_written_once(leads: Leads) -> None:
    lead = leads.of([torch.ones(16).expand(8, 16)])
    assert lead.moved_bytes == 64
    lead.run()
