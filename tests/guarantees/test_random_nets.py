"""Random networks under random caps: the compiled code stays under the cap, or the error names a cap that does."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.errors import InfeasibleError
from tests.guarantees.nets import Net, nets
from tests.guarantees.regions import PLENTY, Planned, Region, capture

pytestmark = pytest.mark.usefixtures("no_kernels")

PARTS = 2
NETS = int(os.environ.get("HILORE_TEST_NETS", "16"))
"""In all; 200 take some minutes."""

SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
"""Of the way from the estimate's smallest cap to its peak with everything stored."""

LEAST_OF_NAMED = 0.6
"""A refused cap is at least this share of the one its error names: what fusion adds to the estimate at the bottom is a
kernel's inputs and outputs, and these nets have one to three layers of a few kernels each."""

MOST_REFUSED = 0.75
"""Share of these caps. With one to three layers most of the way up is what the estimate does not see."""

FOLLOWED = 3
"""How often one has to follow the errors to a plan, at most. What an error names is the peak of one compiled plan; a
search for that cap may begin with others."""


@pytest.mark.parametrize("part", range(PARTS))
def test_the_peak_is_under_the_cap_or_the_error_names_one(part: int) -> None:
    refused: list[float] = []

    @settings(max_examples=NETS // PARTS)
    @given(net=nets(part), share=st.sampled_from(SHARES))
    def check(net: Net, share: float) -> None:
        region = capture(*net.build())
        cap_bytes = region.estimated().at(share)
        planned = _planned(region, cap_bytes)
        if isinstance(planned, InfeasibleError):
            refused.append(share)
            _check_refusal(region, cap_bytes, planned)
        else:
            assert planned.peak_bytes <= cap_bytes

    check()
    assert len(refused) <= MOST_REFUSED * (NETS // PARTS)


def _planned(region: Region, cap_bytes: int) -> Planned | InfeasibleError:
    try:
        return region.planned(cap_bytes)
    except InfeasibleError as error:
        return error


def _check_refusal(region: Region, cap_bytes: int, error: InfeasibleError) -> None:
    """A refusal names a cap not far above, which leads to a plan; no cap that stores everything is refused."""
    named_bytes = error.smallest_feasible_cap_bytes or 0
    assert cap_bytes < named_bytes <= cap_bytes / LEAST_OF_NAMED
    assert str(named_bytes) in str(error)
    assert region.planned(PLENTY).peak_bytes > cap_bytes
    for _ in range(FOLLOWED):
        planned = _planned(region, named_bytes)
        if not isinstance(planned, InfeasibleError):
            assert planned.peak_bytes <= named_bytes
            return
        named_bytes = planned.smallest_feasible_cap_bytes or 0
    raise AssertionError(f"{named_bytes} bytes were named last, and refused")
