from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.readme_tables import END, ROOT, START, with_tables

README = f"# Name\n\n{START}\n\nold\n\n{END}\n\n## More\n"


def _row(cap_gib: int | None, **figures: Any) -> dict[str, Any]:
    cap = cap_gib and cap_gib * 2**30
    return {"setting": "small", "variant": "hilore", "cap_bytes": cap} | figures


def _measured(cap_gib: int) -> dict[str, Any]:
    return _row(
        cap_gib,
        time_ms=100.0 / cap_gib,
        measured_peak_bytes=cap_gib * 2**30,
        predicted_peak_bytes=cap_gib * 2**30,
        tokens_per_second=1000 * cap_gib,
        time_ratio=0.99,
    )


def _record(folder: Path, rows: list[dict[str, Any]]) -> None:
    about = {"command": "hilore bench x", "device": "D", "torch": "2.13.0", "commit": "abc"}
    record = about | {"date": "2020-01-02T03:04:05+00:00", "rows": rows}
    (folder / "speed.json").write_text(json.dumps(record))


def test_the_readme_is_in_step_with_the_recorded_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_tables(text, ROOT / "docs" / "results") == text, "run scripts/readme_tables.py"


def test_without_files_there_are_no_figures(tmp_path: Path) -> None:
    assert with_tables(README, tmp_path) == f"# Name\n\n{START}\n{END}\n\n## More\n"


def test_a_row_becomes_a_line(tmp_path: Path) -> None:
    _record(tmp_path, [_measured(2), _row(1, error="InfeasibleError: ...")])
    text = with_tables(README, tmp_path)
    line = "| small | hilore | 2.00 GiB | 50.0 ms | 2.00 GiB | 2.00 GiB | 1.0000 | 2,000 | 0.990 |"
    assert line in text
    assert "| small | hilore | 1.00 GiB | refused | - | - | - | - | - |" in text
    assert "`hilore bench x`, D, torch 2.13.0, commit abc, 2020-01-02" in text
    assert with_tables(text, tmp_path) == text


def test_many_caps_become_one_line(tmp_path: Path) -> None:
    _record(tmp_path, [_measured(cap) for cap in range(1, 9)])
    cells = "1.00 GiB to 8.00 GiB (8) | 12.5 ms to 100.0 ms | 1.00 GiB to 8.00 GiB"
    assert f"| small | hilore | {cells}" in with_tables(README, tmp_path)


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="must hold"):
        with_tables("# Name\n", tmp_path)
