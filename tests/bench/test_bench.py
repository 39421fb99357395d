"""Benchmarks: what is measured, in which order, and what a record says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from hilore_planner.bench import peak as peak_bench
from hilore_planner.bench import runner
from hilore_planner.bench.dead_rows import DROPPED
from hilore_planner.bench.dead_rows import summary as dead_summary
from hilore_planner.bench.peak import Runs, bench_peak, is_overtaken, ladder_caps
from hilore_planner.bench.peak import summary as peak_summary
from hilore_planner.bench.runner import (
    Job,
    Row,
    earlier_rows,
    recorded_settings,
    run_as_ready,
    run_jobs,
    write_record,
)
from hilore_planner.bench.setting import SETTINGS, Setting, Variant, device_here, setting_named
from hilore_planner.errors import OptionError


def test_a_setting_is_named_with_or_without_layers() -> None:
    assert setting_named("qwen2.5-1.5b") is SETTINGS["qwen2.5-1.5b"]
    short = setting_named("qwen2.5-1.5b:4")
    assert (short.layers, short.name, short.tokens) == (4, "qwen2.5-1.5b-4layers", 4 * 2560)
    for wrong in ("qwen9", "qwen2.5-1.5b:four"):
        with pytest.raises(OptionError, match=wrong):
            setting_named(wrong)


@pytest.mark.parametrize("name", ["tpu", "", "cuda"])
def test_a_device_that_is_not_here_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_here("cpu") == "cpu"
    with pytest.raises(OptionError, match=f"--device is '{name}'; accepted on this machine: cpu$"):
        device_here(name)


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


def test_jobs_run_as_ready_lead_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_WORKER", "tests.bench.rower")
    tiny = SETTINGS["tiny"]
    lost = Job(Setting("lost", "no such model", 1, 1, 1), Variant("eager", "eager-gc"))

    def then(row: Row) -> list[Job]:
        return [Job(tiny, Variant("eager", "eager-gc"))] if "error" in row else []

    rows = list(run_as_ready([lost], then, device="cpu", side_by_side=1))
    assert [row["setting"] for row in rows] == ["lost", "tiny"]
    assert rows[1]["time_ms"] > 0


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
        "head_ns": 0,
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


def _tried(jobs: Sequence[Job], then: Callable[[Row], Sequence[Job]], **_: object) -> Iterator[Row]:
    """What a runner yields where updates take 300 bytes, or 100 at least; a cap of 200 has a slow plan at first."""
    queue, is_first = list(jobs), True
    while queue:
        job = queue.pop(0)
        cap = job.variant.cap_bytes
        row: Row = {"setting": job.setting.name, "variant": job.variant.name, "cap_bytes": cap}
        if cap is None:
            row |= {"predicted_peak_bytes": 300}
        elif cap == 1:
            row |= {"refused": True, "error": "small", "smallest_feasible_cap_bytes": 100}
        else:
            row |= {"objective_ns": 999 if cap == 200 and is_first else 400 - cap}
            row |= {"head_ns": 0, "predicted_peak_bytes": cap}
            is_first = is_first and cap != 200
        queue += then(row)
        yield row


def _climbed(monkeypatch: pytest.MonkeyPatch, earlier: Sequence[Row] = ()) -> list[list[Row]]:
    monkeypatch.setattr(peak_bench, "run_as_ready", _tried)
    return list(bench_peak([Setting("s", "tiny", 1, 1, 1)], rungs=3, runs=Runs("cpu", 3, earlier)))


def test_a_ladder_is_climbed_and_a_rung_slower_than_a_smaller_cap_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = _climbed(monkeypatch)
    assert len(parts) == 3 + 2 * 3 + 1
    caps = [row["cap_bytes"] for row in parts[-1]]
    assert caps == [None, 1, 100, 200, 300, 1, 100, 200, 300]
    assert [row["objective_ns"] for row in parts[-1] if (row["cap_bytes"] or 0) >= 100] == [
        *(300, 200, 100),
        *(300, 200, 100),
    ]


def test_ladders_of_earlier_settings_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_bench, "run_as_ready", _tried)
    settings = [Setting(name, "tiny", 1, 1, 1) for name in ("first", "second")]
    parts = list(bench_peak(settings, rungs=3, runs=Runs("cpu", 1)))
    assert [part[0]["setting"] for part in parts] == ["first"] * 10 + ["second"] * 9
    several = peak_bench.Queue(["first", "second"], 2)
    jobs = [Job(setting, Variant("eager", "eager-gc")) for setting in reversed(settings)]
    assert several.taken([jobs[0]]) == [jobs[0]]  # nothing else is there yet
    assert several.taken([*jobs, jobs[1]]) == [jobs[1]]
    several.free += 2
    assert several.taken([]) == [jobs[1], jobs[0]]


def test_a_rung_is_overtaken_by_what_fits_and_is_faster_or_as_fast_and_smaller() -> None:
    row = _cell(100, 90, 1.0, added_ns=5)
    for peak, added_ns, expected in ((80, 5, True), (90, 4, True), (90, 5, False), (101, 4, False)):
        assert is_overtaken(row, [row, _cell(120, peak, 1.0, added_ns)]) is expected
    assert is_overtaken(row | {"head_ns": 1}, [_cell(90, 90, 1.0, added_ns=5)])
    assert not is_overtaken({"cap_bytes": 1, "refused": True}, [row])


def test_known_cells_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HILORE_COMMIT", "abc")
    rows = [row | {"commit": "abc"} for row in _climbed(monkeypatch)[-1]]
    lost = {"setting": "s", "variant": "hilore exact", "cap_bytes": 300, "error": "lost"}
    known = [row for row in rows if row["cap_bytes"] != 300]
    earlier = [*known, lost | {"commit": "abc"}, lost | {"setting": "other"}]
    parts = _climbed(monkeypatch, earlier)
    assert parts[0] == known  # nothing of them is lost where the call is cut short
    assert [len(part) for part in parts] == [7, 8, 9]


def test_of_another_commit_the_ends_of_ladders_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HILORE_COMMIT", "abc")
    rows = [row | {"commit": "older"} for row in _climbed(monkeypatch)[-1]]
    parts = _climbed(monkeypatch, rows)
    assert [row["cap_bytes"] for row in parts[0]] == [None, 1, 1]
    assert len(parts[-1]) == 9


def test_a_part_of_a_record_takes_the_place_of_its_setting_alone(tmp_path: Path) -> None:
    path = tmp_path / "peak.json"
    before = [{"setting": "a", "n": 1}, {"setting": "b", "n": 2}, {"setting": "b", "n": 3}]
    parts = [[{"setting": "b", "n": 4}], [{"setting": "b", "n": 5}]]
    rows = recorded_settings(path, parts, device="cpu", before=before)
    assert rows == [before[0], {"setting": "b", "n": 5}]
    assert json.loads(path.read_text())["rows"] == rows


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
