"""Two-layer models of six architectures: what runs takes what was predicted, and that is under the cap."""

from __future__ import annotations

import pytest

from hilore_planner.bench.peak import estimated_caps
from hilore_planner.bench.small_models import ARCHITECTURES, small_update
from tests.guarantees.regions import PLENTY, Region, capture

RUNGS = 4
WITHIN = 1.003
"""A prediction is never below what is measured, and no further above it than this."""


def _region_of(name: str) -> Region:
    update = small_update(name)
    return capture(update.loss, *update.batch)


def _check(region: Region, rung: int, gradient_error: float) -> set[str]:
    """Plans under one cap of a ladder and measures; returns the actions of the plan."""
    roomy = region.planned(PLENTY, gradient_error=gradient_error)
    cap_bytes = estimated_caps(roomy.plan, gradient_error, RUNGS)[rung]
    planned = region.planned(cap_bytes, gradient_error=gradient_error)
    measured_bytes = region.measured_bytes(planned)
    assert measured_bytes <= planned.peak_bytes <= cap_bytes
    assert planned.peak_bytes <= WITHIN * measured_bytes
    return {action.partition(":")[0] for action in planned.plan.solution.placement.values()}


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact_plans(name: str) -> None:
    """Allocations are real; kernels that fusion makes are not compiled, as they allocate nothing."""
    assert _check(_region_of(name), 1, 0.0) == {"store", "recompute"}


@pytest.mark.usefixtures("no_kernels")
def test_a_compressed_plan() -> None:
    assert "compress" in _check(_region_of("qwen2"), 1, 0.05)


def test_with_compiled_kernels() -> None:
    _check(_region_of("llama"), 1, 0.0)
