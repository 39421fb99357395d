"""Benchmarks: what is measured, in which order, and what a record says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hilore_planner.bench.dead_rows import DROPPED
from hilore_planner.bench.dead_rows import summary as dead_summary
from hilore_planner.bench.peak import ladder_caps
from hilore_planner.bench.peak import summary as peak_summary
from hilore_planner.bench.runner import Job, run_jobs, write_record
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


def _cell(cap: int, peak: int, time_ms: float) -> dict[str, object]:
    figures = {"measured_peak_bytes": peak, "predicted_peak_bytes": peak, "time_ms": time_ms}
    return {"setting": "s", "variant": "v", "cap_bytes": cap, **figures}


def test_the_peak_summary_counts_what_is_out_of_order() -> None:
    rows = [_cell(10, 9, 5.0), _cell(20, 21, 4.0), _cell(30, 20, 6.0)]
    (line,) = peak_summary([*rows, {"setting": "s", "variant": "v", "error": "too small"}])
    assert line == (
        "s, v: 3 of 4 cells; predicted/measured 1.0000 to 1.0000; over the cap 1; "
        "peaks fall 1 times, times rise 1 times as the cap grows"
    )


def test_the_dead_rows_summary_compares_each_way_with_itself() -> None:
    rows = [{"variant": "gc", "time_ms": 100.0}, {"variant": "gc" + DROPPED, "time_ms": 40.0}]
    assert dead_summary(rows) == ["gc: 40.0 of 100.0 ms, 40.0%"]
