"""``hilore bench compile-time``: what its rows say."""

from __future__ import annotations

import pytest

from hilore_planner.bench.compile_time import summary
from hilore_planner.bench.cost import planning_share
from hilore_planner.bench.runner import Row


def test_planning_is_compared_with_all_else_that_compiling_takes() -> None:
    plain: Row = {
        "setting": "narrow, 4 layers",
        "variant": "inductor",
        "first_call_seconds": 50.0,
        "first_call_cpu_seconds": 80.0,
    }
    planned = plain | {
        "variant": "hilore",
        "rounds": 2,
        "added_share": 0.031,
        "planning_seconds": 2.0,
        "compile_seconds": 42.0,
    }
    assert planning_share(planned) == pytest.approx(0.05)
    first, second = summary([plain, planned])
    assert first == ("narrow, 4 layers, inductor: first call 50.0 s, 80.0 s of them at work")
    assert second.endswith(
        ", +3.1% in all; 2 rounds, in the last planning took 2.00 s, 5.0% of Inductor's time"
    )
