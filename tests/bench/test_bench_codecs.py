"""What codecs are said to lose is what was measured, and the kernels around them can be timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hilore_planner.bench.codecs import bench_errors, bench_kernels, error_table, summary
from hilore_planner.passes.codecs import codec_named

DOCS = Path(__file__).parents[2] / "docs"


def test_stated_errors_and_the_table_are_those_of_the_recorded_measurement() -> None:
    rows = json.loads((DOCS / "results" / "codecs.json").read_text(encoding="utf-8"))["rows"]
    assert "\n".join(error_table(rows)) in (DOCS / "codecs.md").read_text(encoding="utf-8")
    gaussian = [row for row in rows if row["setting"] == "Gaussian"]
    assert len(gaussian) == 8
    for row in gaussian:
        stated = codec_named(row["variant"], row["rounding"]).relative_error
        assert row["relative_error"] == pytest.approx(stated, rel=0.02)


def test_a_measurement_of_fewer_values_agrees_with_the_recorded_one() -> None:
    recorded = json.loads((DOCS / "results" / "codecs.json").read_text(encoding="utf-8"))["rows"]
    errors = {
        (r["setting"], r["variant"], r["rounding"]): r for r in recorded if "relative_error" in r
    }
    # A thousand outliers would not settle their row's error.
    rows = [row for row in bench_errors(64, 2048) if row["setting"] != "outlier channels"]
    assert len(rows) == 3 * 8
    for row in rows:
        same = errors[row["setting"], row["variant"], row["rounding"]]
        assert row["relative_error"] == pytest.approx(same["relative_error"], rel=0.05)


def test_kernels_are_timed_with_and_without_each_codec() -> None:
    with torch.compiler.set_stance("force_eager"):
        rows = bench_kernels(8, 32, device="cpu", repeats=1, codecs=["int8"])
    assert [row["variant"] for row in rows] == ["stored", "int8"] * 2
    assert all(row["forward_ms"] > 0 and row["backward_ms"] > 0 for row in rows)
    lines = summary(rows)
    assert lines[-1].startswith("norm before a product, 8 x 32, int8: ")
    assert len(lines) == 4
