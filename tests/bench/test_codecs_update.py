"""Plans that keep everything by one codec, and what is said of their times."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hilore_planner.bench.codecs_update import (
    bench_updates,
    copies_stored,
    everything_by,
    nothing_stored,
    summary,
)
from hilore_planner.bench.setting import setting_named
from hilore_planner.errors import OptionError
from hilore_planner.grpo.actor import MODELS, actor_loss, build_qwen2, random_batch
from hilore_planner.offline.planner import plan
from hilore_planner.solvers import replay


def test_everything_stored_is_kept_by_the_codec() -> None:
    setting = setting_named("tiny:1")
    shape = {**MODELS["tiny"], "num_hidden_layers": 1}
    with torch._subclasses.FakeTensorMode():
        model = build_qwen2(dtype=torch.float32, **shape)
        batch = random_batch(
            sequences=2,
            prompt=8,
            response=56,
            vocab_size=model.config.vocab_size,
            seed=setting.seed,
        )
        stored = plan(actor_loss(model, prompt=8), *batch, gradient_error=0.9, costs="roofline")
    assert "store" in stored.solution.placement.values()
    found = everything_by(stored, "int8")
    offered = {u.name for u in found.problem.units if any(f.codec == "int8" for f in u.codecs)}
    assert not any(
        found.solution.placement[name] == "store"
        for name in offered & set(found.solution.placement)
    )
    others = {n: a for n, a in stored.solution.placement.items() if n not in offered}
    assert others.items() <= found.solution.placement.items()
    assert found.solution.saved_bytes < 0.6 * stored.solution.saved_bytes
    replayed = replay(found.problem, found.solution.placement)
    assert found.solution.peak_bytes == replayed.peak_bytes <= found.problem.memory_cap_bytes
    assert replayed.risk <= found.problem.gradient_error**2
    nothing = nothing_stored(stored, "int8")
    made_again = nothing.solution
    assert {name: made_again.placement.get(name) for name in offered} != {
        name: found.solution.placement.get(name) for name in offered
    }
    assert not any(made_again.placement.get(name) == "store" for name in offered)
    assert made_again.objective_ns <= found.solution.objective_ns
    same = copies_stored(nothing, "int8").solution
    changed = {name for name, action in made_again.placement.items() if action == "compress:int8"}
    assert changed
    assert same.placement == {**made_again.placement, **dict.fromkeys(changed, "store")}
    assert same.saved_bytes > made_again.saved_bytes


def test_codecs_that_there_are_not_are_refused() -> None:
    with pytest.raises(
        OptionError, match=r"--codec is 'int3'; accepted: int8, fp8_e4m3, int6, int4"
    ):
        next(bench_updates([setting_named("tiny:1")], ["int3"], device="cpu", side_by_side=1))


def test_times_are_compared_with_storing_turn_by_turn() -> None:
    def row(variant: str, times_ms: list[float], saved_bytes: int) -> dict[str, Any]:
        same = {"setting": "a", "variant": variant, "saved_bytes": saved_bytes}
        return same | {"turn_times_ms": times_ms}

    rows = [
        row("everything stored", [200.0, 100.0, 400.0], 100),
        row("everything by int8", [201.0, 150.0, 402.0], 51),
        row("nothing stored, int8", [203.0, 101.5, 300.0], 40),
        row("stored instead of int8", [202.0, 101.0, 404.0], 79),
        {"setting": "b", "variant": "everything stored", "error": "no memory"},
    ]
    assert summary(rows) == [
        "a, everything by int8: +0.50% of the update, 51% of the bytes",
        "a, nothing stored, int8: +1.50% of the update, 40% of the bytes; +0.50% over the same stored",
        "a, stored instead of int8: +1.00% of the update, 79% of the bytes",
        "b, everything stored: no memory",
    ]
