"""Two-layer models of six architectures with the kernels they really run, over whole ladders of caps.

Takes some tens of minutes, and is run by ``make peaks``; what the other tests compile has no kernels.
"""

from __future__ import annotations

import itertools

import pytest

from hilore_planner.bench.peak import ERRORS, SAVED_AS
from hilore_planner.bench.peak_cpu import bench_peak_cpu
from hilore_planner.bench.runner import Row
from hilore_planner.bench.small_models import ARCHITECTURES

RUNGS = 3
WITHIN = 1.003
"""A prediction is never below what is measured, and no further above it than this."""


@pytest.mark.slow
def test_caps_are_kept_and_more_memory_never_costs_time() -> None:
    names = list(ARCHITECTURES)
    parts = bench_peak_cpu(names, rungs=RUNGS, side_by_side=2)
    rows = {name: part for part in parts for name in [part[0]["setting"]]}
    for name, label in itertools.product(names, ERRORS):
        ladder = [row for row in rows[name] if row["variant"] == f"hilore {label}"]
        assert len(ladder) == RUNGS
        _check_ladder(ladder)
    for name in names:
        _check_rivals({row["variant"]: row for row in rows[name]})


def _check_ladder(ladder: list[Row]) -> None:
    for row in ladder:
        assert row["measured_peak_bytes"] <= row["predicted_peak_bytes"] <= row["cap_bytes"]
        assert row["ratio"] <= WITHIN
    for tighter, looser in itertools.pairwise(ladder):
        assert tighter["objective_ns"] >= looser["objective_ns"]
        assert tighter["predicted_peak_bytes"] <= looser["predicted_peak_bytes"]


def _check_rivals(rows: dict[str, Row]) -> None:
    """With no more bytes saved than by others, the peak is no higher."""
    compared = [name for name in rows if SAVED_AS.format(name) in rows]
    assert "eager-gc" in compared
    for name in compared:
        theirs, ours = rows[name], rows[SAVED_AS.format(name)]
        if not ours["refused"]:
            assert ours["measured_saved_bytes"] <= theirs["measured_saved_bytes"]
            assert ours["measured_peak_bytes"] <= theirs["measured_peak_bytes"]
