"""The bench of heads: its reference, its rows, and ways that compute the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hilore_planner.bench import head as bench
from hilore_planner.bench.head import HeadShape, bench_head, prepare, summary
from hilore_planner.bench.head_reference import exact_gradients, head_batch, relative_error
from hilore_planner.bench.head_ways import HeadBatch, HeadWay, Level, head_ways, policy_loss
from hilore_planner.grpo.head import log_probs


def small(dtype: torch.dtype = torch.float64) -> HeadBatch:
    device = torch.device("cpu")
    return head_batch(
        sequences=3, tokens=200, hidden=8, vocabulary=51, dtype=dtype, device=device, seed=0
    )


def plain_loss(b: HeadBatch, level: Level) -> torch.Tensor:
    logp = log_probs(b.hidden, b.weight, b.targets)
    return policy_loss(logp, b.old.double(), b.advantages.double(), level)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_exact_gradients_are_those_of_autograd(level: Level) -> None:
    """More rows than are done at a time; some tokens clipped, some not."""
    b = small()
    assert b.tokens > 512
    ratio = (log_probs(b.hidden, b.weight, b.targets) - b.old).exp()
    assert 0 < ((ratio - 1).abs() > 0.2).sum() < b.tokens // 2
    found = torch.autograd.grad(plain_loss(b, level), [b.hidden, b.weight])
    for mine, theirs in zip(exact_gradients(b, level), found, strict=True):
        assert relative_error(mine, theirs) < 1e-12


def test_relative_error_is_relative_to_the_norm() -> None:
    exact = torch.ones(20_000, 3, dtype=torch.float64)
    wrong = exact.clone()
    wrong[-1] *= 2
    assert relative_error(wrong, exact) == pytest.approx((1 / 20_000) ** 0.5)


def test_every_way_is_there_or_says_why_not() -> None:
    ways = {way.name: way for way in head_ways("token", (8, 32))}
    assert list(ways)[:3] == ["plain", "planned", "planned, 1 GiB"]
    assert {"planned, 8 chunks", "planned, 32 chunks", "checkpointed, 8 chunks"} <= ways.keys()
    assert "planned, 32 chunks, float32 totals" in ways
    assert {"liger", "trl"} <= ways.keys()
    for way in ways.values():
        assert (way.run is None) == bool(way.reason)


def test_rows_have_time_memory_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def ways(level: Level, chunks: tuple[int, ...]) -> Iterator[HeadWay]:
        yield HeadWay("plain", lambda b: plain_loss(b, level).float())
        yield HeadWay("broken", lambda b: b.hidden.new_zeros(()))
        yield HeadWay("away", None, "not installed: x")

    monkeypatch.setattr(bench, "head_ways", ways)
    shape = HeadShape(96, 8, 501, "sequence", sequence=48, dtype="float32")
    plain, broken, away = prepare(shape, (2,), torch.device("cpu")).rows(3)
    assert plain["time_ms_min"] <= plain["time_ms"] <= plain["time_ms_max"]
    assert plain["weight_gradient_error"] < 1e-5
    assert plain["hidden_gradient_error"] < 1e-5
    logits_bytes = 4 * 96 * 501
    assert 2 * logits_bytes <= plain["head_bytes"] < 10 * logits_bytes
    assert "does not require grad" in broken["error"]
    assert away["error"] == "not installed: x"
    lines = summary([plain, broken, away])
    assert "(1.000)" in lines[0]
    assert lines[2].endswith("not installed: x")


def test_a_head_that_cannot_be_measured_has_a_row_that_says_so() -> None:
    wrong = HeadShape(16, 4, 0, "token", sequence=8, dtype="float32")
    (row,) = bench_head([wrong], (2,), device="cpu", repeats=1, side_by_side=2)
    assert row["setting"] == wrong.name
    assert "without an answer" in row["error"]
