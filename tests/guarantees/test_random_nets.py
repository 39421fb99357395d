"""Random networks under random caps: the compiled code stays under the cap, or the error names a cap that does."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hilore_planner.errors import InfeasibleError
from tests.guarantees.nets import Net, nets
from tests.guarantees.regions import capture

pytestmark = pytest.mark.usefixtures("no_kernels")

PARTS = 2
NETS = int(os.environ.get("HILORE_TEST_NETS", "16"))
"""In all; 200 take some minutes."""

SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
"""Of the way from the estimate's smallest cap to its peak with everything stored."""

MOST_REFUSED = 0.06
"""Share of these caps that are refused, at most, if it is more than one: the estimate takes them for feasible, and no
plan's compiled code keeps them."""


@pytest.mark.parametrize("part", range(PARTS))
def test_the_peak_is_under_the_cap_or_the_error_names_one_that_is_kept(part: int) -> None:
    refused: list[float] = []

    @settings(max_examples=NETS // PARTS)
    @given(net=nets(part), share=st.sampled_from(SHARES))
    def check(net: Net, share: float) -> None:
        region = capture(*net.build())
        cap_bytes = region.estimated().at(share)
        planned = region.tried(cap_bytes)
        if isinstance(planned, InfeasibleError):
            refused.append(share)
            named_bytes = planned.smallest_feasible_cap_bytes or 0
            assert named_bytes > cap_bytes
            assert str(named_bytes) in str(planned)
            planned = region.planned(named_bytes)
        assert planned.peak_bytes <= planned.cap_bytes

    check()
    assert len(refused) <= max(1, round(MOST_REFUSED * (NETS // PARTS)))
