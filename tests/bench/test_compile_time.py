"""``hilore bench compile-time``: what its rows say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hilore_planner.bench import compile_time
from hilore_planner.bench.budget import share_that_saves
from hilore_planner.bench.compile_time import TimedPartitioner, bench_compile_time, summary
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
        "planning_added_share": 0.03,
        "compile_seconds": 42.0,
    }
    budget = plain | {"variant": "budget 0.5", "added_share": 0.02}
    first, second, third = summary([plain, planned, budget])
    assert first == ("narrow, 4 layers, inductor: first call 50.0 s, 80.0 s of them at work")
    assert second.endswith(
        ", +3.1% in all; 2 rounds, in the last planning took 2.00 s: +3.0% of plain Inductor's time beyond torch's own "
        "partitioner"
    )
    assert third.endswith("budget 0.5: first call 50.0 s, 80.0 s of them at work, +2.0% in all")


def test_the_share_of_a_budget_is_found_that_saves_no_more() -> None:
    """To save two of four activations takes more than nothing and less than to save all."""
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(4)]
    x = torch.randn(256, 64)

    def loss(value: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            value = (value @ weight).sin()
        return value.sum()

    each_bytes = 256 * 64 * 4
    shares = [share_that_saves(loss, [x], count * each_bytes) for count in (2, 4)]
    assert 0 < shares[0] < shares[1]


def test_the_first_calls_of_least_work_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([90.0, 84.0, 80.0, 88.0])
    own = {"inductor": {"partitioner_seconds": 1.0}, "hilore": {"planning_seconds": 3.0}}

    def rows(_: object) -> Iterator[Row]:
        for variant, more in own.items():
            took = {"first_call_cpu_seconds": next(seconds), "first_call_seconds": 50.0}
            yield {"variant": variant, **took, **more}

    monkeypatch.setattr(compile_time._Process, "rows", rows)
    plain, planned = bench_compile_time(1, repeats=2, costs="roofline", device="cpu")
    assert (plain["first_call_cpu_seconds"], planned["first_call_cpu_seconds"]) == (80.0, 84.0)
    assert "added_share" not in plain
    assert (planned["added_share"], planned["planning_added_share"]) == (0.05, 0.04)


def test_torchs_own_partitioner_is_timed(no_kernels: None) -> None:
    torch._dynamo.reset()
    partitioner, weight = TimedPartitioner(), torch.ones(4, requires_grad=True)

    def double(x: torch.Tensor) -> torch.Tensor:
        return (x * weight).sum()

    message = {"variant": "inductor"}
    compile_time._compiled(double, message, partitioner)(torch.ones(4))
    assert partitioner.seconds > 0
