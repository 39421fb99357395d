"""Benchmarks: what is measured, in which order, and what a record says."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from hilore_planner.bench import peak as peak_bench
from hilore_planner.bench.dead_rows import DROPPED
from hilore_planner.bench.dead_rows import summary as dead_summary
from hilore_planner.bench.peak import Runs, bench_peak, ladder_caps
from hilore_planner.bench.peak import summary as peak_summary
from hilore_planner.bench.runner import Job, Row, earlier_rows, run_jobs, write_record
from hilore_planner.bench.setting import SETTINGS, Setting, Variant, setting_named
from hilore_planner.errors import OptionError


def test_a_setting_is_named_with_or_without_layers() -> None:
    assert setting_named("qwen2.5-1.5b") is SETTINGS["qwen2.5-1.5b"]
    short = setting_named("qwen2.5-1.5b:4")
    assert (short.layers, short.name, short.tokens) == (4, "qwen2.5-1.5b-4layers", 4 * 2560)
    for wrong in ("qwen9", "qwen2.5-1.5b:four"):
        with pytest.raises(OptionError, match=wrong):
            setting_named(wrong)


def test_a_ladder_is_even_and_has_both_ends() -> None:
    assert ladder_caps(100, 200, 5) == [100, 125, 150, 175, 200]


def test_jobs_run_side_by_side_and_a_failing_one_says_why() -> None:
    tiny = SETTINGS["tiny"]
    eager = Job(tiny, Variant("eager", "eager-gc"))
    lost = Job(Setting("lost", "no such model", 1, 1, 1), Variant("eager", "eager-gc"))
    done, failed = run_jobs([eager, lost], device="cpu", side_by_side=2)
    assert done["setting"] == "tiny"
    assert done["time_ms"] > 0
    # Weights alone: two layers of width 128 in fp32, and 1024 tied embeddings.
    assert done["measured_peak_bytes"] > 4 * 1024 * 128
    assert "no such model" in failed["error"]


def test_a_record_says_with_what_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hilore", "bench", "peak", "-o", "/somewhere/else.json"])
    monkeypatch.setenv("HILORE_COMMIT", "abc")
    write_record(tmp_path / "deep" / "peak.json", [{"setting": "x"}], device="cpu")
    record = json.loads((tmp_path / "deep" / "peak.json").read_text())
    assert record["command"] == "hilore bench peak"
    assert (record["commit"], record["device"]) == ("abc", "cpu")
    assert record["rows"] == [{"setting": "x"}]


def _cell(cap: int, peak: int, time_ms: float, added_ns: int = 0) -> Row:
    figures = {"measured_peak_bytes": peak, "predicted_peak_bytes": peak, "time_ms": time_ms}
    return {
        "setting": "s",
        "variant": "v",
        "cap_bytes": cap,
        "objective_ns": added_ns,
        **figures,
    }


def test_the_peak_summary_counts_what_is_out_of_order() -> None:
    rows = [_cell(10, 9, 5.0, 3), _cell(20, 21, 4.0, 2), _cell(30, 20, 6.0, 1)]
    failed = {"setting": "s", "variant": "v", "cap_bytes": 40, "error": "too small"}
    (line,) = peak_summary([*rows, failed, failed | {"cap_bytes": 1, "refused": True}])
    assert line == (
        "s, v: 3 of 4 cells; predicted/measured 1.0000 to 1.0000; over the cap 1; as the cap grows, peaks fall "
        "1 times, planned times rise 0 times, measured ones 1 times"
    )


def test_the_peak_summary_compares_at_equal_saved_bytes() -> None:
    theirs = {
        "setting": "s",
        "cap_bytes": None,
        "measured_peak_bytes": 9,
        "measured_saved_bytes": 4,
    }
    ours: Row = {**theirs, "measured_peak_bytes": 7, "measured_saved_bytes": 3, "refused": False}
    none: Row = {"setting": "s", "cap_bytes": None, "refused": True}
    rows = [
        theirs | {"variant": "gc"},
        ours | {"variant": "hilore, saved bytes of gc"},
        theirs | {"variant": "budget 0"},
        none | {"variant": "hilore, saved bytes of budget 0"},
    ]
    assert peak_summary(rows) == [
        "s, gc: peak 9 bytes with 4 saved; planned 7 with 3",
        "s, budget 0: peak 9 bytes with 4 saved; no plan saves so little",
    ]


def test_known_cells_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def run(jobs: Sequence[Job], **_: object) -> list[Row]:
        asked.extend(job.variant.cap_bytes for job in jobs)
        return [_cell(job.variant.cap_bytes or 0, 1, 1.0) for job in jobs]

    monkeypatch.setattr(peak_bench, "run_jobs", run)
    setting = Setting("s", "tiny", 1, 1, 1)
    jobs = [Job(setting, Variant("v", "hilore", cap_bytes=cap)) for cap in (10, 20, 30)]
    runs = Runs("cpu", 2, [_cell(20, 5, 9.0)])
    assert [row["time_ms"] for row in runs.rows(jobs)] == [1.0, 9.0, 1.0]
    assert asked == [10, 30]
    assert [row["time_ms"] for row in runs.rows(jobs[1:2], is_new=True)] == [1.0]


def test_a_rung_slower_than_a_smaller_cap_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def run(jobs: Sequence[Job], **_: object) -> list[Row]:
        return [row(job.variant) for job in jobs]

    def row(variant: Variant) -> Row:
        cap = variant.cap_bytes
        found = {"setting": "s", "variant": variant.name, "cap_bytes": cap}
        if cap is None:
            return found | {"predicted_peak_bytes": 300}
        if cap == 1:
            return found | {"refused": True, "smallest_feasible_cap_bytes": 100}
        made.append(cap)
        return found | {"objective_ns": 9 if cap == 200 and made.count(200) <= 2 else 400 - cap}

    monkeypatch.setattr(peak_bench, "run_jobs", run)
    parts = list(bench_peak([Setting("s", "tiny", 1, 1, 1)], rungs=3, runs=Runs("cpu", 3)))
    assert [len(part) for part in parts] == [3, 3, 3]
    assert made.count(300) == 4  # once on each ladder, and once more
    assert made.count(200) == 2


def test_rows_of_an_earlier_record_keep_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "peak.json"
    assert earlier_rows(path, device="cpu") == []
    monkeypatch.setenv("HILORE_COMMIT", "abc")
    write_record(path, [{"setting": "x"}, {"setting": "y", "commit": "older"}], device="cpu")
    assert [row["commit"] for row in earlier_rows(path, device="cpu")] == ["abc", "older"]
    path.write_text(path.read_text().replace(torch.__version__, "0.1"))
    assert earlier_rows(path, device="cpu") == []


def test_the_dead_rows_summary_compares_each_way_with_itself() -> None:
    rows = [{"variant": "gc", "time_ms": 100.0}, {"variant": "gc" + DROPPED, "time_ms": 40.0}]
    assert dead_summary(rows) == ["gc: 40.0 of 100.0 ms, 40.0%"]
