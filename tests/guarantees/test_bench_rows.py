"""Rows of the peak benchmark: what is refused names where the ladder begins, and that cap is kept."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict
from typing import Any

import pytest

from hilore_planner.bench.setting import SETTINGS, Variant
from hilore_planner.bench.worker import main


def _row(cap_bytes: int, monkeypatch: Any, capsys: Any) -> dict[str, Any]:
    variant = Variant("capped", "hilore", cap_bytes=cap_bytes)
    job = {"setting": asdict(SETTINGS["tiny"]), "variant": variant.as_dict(), "device": "cpu"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job) + "\ngo\n"))
    main()
    row: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return row


UNSEEN_BYTES = 64
"""Rotary frequencies that the model holds twice, of which the update reads one: on the CPU nothing is seen of what no
input is, and a benchmark counts all that the model holds."""


@pytest.mark.usefixtures("no_kernels")
def test_a_refused_row_names_a_cap_that_is_kept(monkeypatch: Any, capsys: Any) -> None:
    refused = _row(1, monkeypatch, capsys)
    assert refused["refused"]
    assert refused["rounds"] >= 1
    least_bytes = refused["smallest_feasible_cap_bytes"]
    assert str(least_bytes) in refused["error"]
    kept = _row(least_bytes, monkeypatch, capsys)
    assert not kept["refused"]
    assert kept["predicted_peak_bytes"] <= least_bytes
    assert kept["measured_peak_bytes"] <= kept["predicted_peak_bytes"] + UNSEEN_BYTES
    assert kept["ratio"] == round(kept["predicted_peak_bytes"] / kept["measured_peak_bytes"], 6)
    assert kept["ratio"] <= 1.003
    assert {"saved_bytes", "time_ms", "rounds"} <= kept.keys()
