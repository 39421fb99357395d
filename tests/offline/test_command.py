"""``hilore plan``, from a config file to a plan that the other commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hilore_planner.plan import PlacementPlan
from tests.command_line import Run, runner

TINY = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}
SIZES = ("--seqs", "4", "--prompt", "32", "--response", "96")


@pytest.fixture
def hilore(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


def _config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(TINY | fields))
    return path


def test_a_config_is_planned_and_every_command_reads_the_plan(hilore: Run, tmp_path: Path) -> None:
    path, other = tmp_path / "plan.json", tmp_path / "other.json"
    result = hilore(
        *("plan", "--model", _config(tmp_path), "--device", "a100-40g", *SIZES),
        *("--gradient-error", "0.01", "--codecs", "int8", "--points", "2", "-o", path),
    )
    assert (result.code, result.err) == (0, "")
    for part in (
        "config.json, 4 x (32 + 96) tokens, bfloat16  a100-40g (profile)",
        "estimated, not checked against compiled code",
        "656.0 thousand parameters",
        "optimizer state",
        "From the smallest cap that something fits to everything stored",
    ):
        assert part in result.out
    plan = PlacementPlan.load(path)
    assert plan.provenance.costs == "roofline"
    assert plan.problem.gradient_error == 0.01
    assert {form.codec for unit in plan.problem.units for form in unit.codecs} == {"int8"}
    cap = plan.solution.peak_bytes - 2**17
    for arguments in (
        ("show", path),
        ("explain", path),
        ("sweep", path, "--caps", f"{cap},{2 * cap}"),
        ("solve", path, "--memory-cap", cap, "-o", other),
        ("diff", path, other),
    ):
        result = hilore(*arguments)
        assert (result.code, result.err) == (0, ""), arguments


def test_as_json(hilore: Run, tmp_path: Path) -> None:
    config = _config(tmp_path)
    result = hilore("plan", "--model", config, *SIZES, "--points", "3", "--json")
    record: dict[str, Any] = json.loads(result.out)
    assert record["status"] == "optimal"
    assert record["workload"]["model"] == str(config)
    assert record["parameters"] == record["trained_parameters"] == 655_360 + 5 * 128
    assert {"saved_bytes", "predicted_peak_bytes", "predicted_time_ns", "units"} <= record.keys()
    rows = record["rows"]
    caps = [row["memory_cap_bytes"] for row in rows]
    assert caps == sorted(caps)
    assert record["smallest_feasible_cap_bytes"] == caps[0]
    assert caps[-1] == record["predicted_peak_bytes"]  # all is stored under the device's memory
    assert all(row["predicted_peak_bytes"] <= row["memory_cap_bytes"] for row in rows)
    times = [row["predicted_time_ns"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert times[-1] == record["predicted_time_ns"]
    assert {"state", "what", "count", "alive_bytes"} <= record["owners"][0].keys()


def test_where_nothing_fits_the_frontier_is_still_there(hilore: Run, tmp_path: Path) -> None:
    result = hilore(
        "plan", "--model", _config(tmp_path), *SIZES, "--points", "2", "--memory-cap", "1MiB"
    )
    assert result.code == 1
    assert "nothing fits memory_cap 1.0 MiB" in result.err
    assert "infeasible" in result.out
    assert "From the smallest cap that something fits to everything stored" in result.out


def test_adapters(hilore: Run, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    config = _config(tmp_path)
    result = hilore("plan", "--model", config, *SIZES, "--lora", "8", "--points", "2", "--json")
    record = json.loads(result.out)
    # Query and output are 128 x 128, key and value 128 x 64, three of the feed-forward 128 x 384.
    trained = 2 * 8 * (2 * 256 + 2 * 192 + 3 * 512)
    assert record["trained_parameters"] == trained
    state = [owner for owner in record["owners"] if owner["what"] == "optimizer state"]
    assert [owner["alive_bytes"] for owner in state] == [2 * 4 * trained]  # peft keeps them in fp32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "qwen2.5-7"), "unknown model 'qwen2.5-7'; did you mean 'qwen2.5-7b'?"),
        (("--model", "none/config.json"), "cannot read the config none/config.json"),
        (("--model", "qwen3-8b", "--seqs", "0"), "sequences is 0; accepted: 1 or more"),
        (("--model", "qwen3-8b", "--lora", "-1"), "lora is -1; accepted: a rank, or 0"),
        (("--model", "qwen3-8b", "--dtype", "int8"), "dtype is 'int8'; accepted: bfloat16"),
        (
            ("--model", "qwen3-8b", "--device", "a100"),
            "device profile 'a100'; did you mean 'a100-80g' or 'a100-40g'?",
        ),
        (("--model", "qwen3-8b", "--optimizer", "lion"), "unknown optimizer 'lion'"),
        (("--model", "qwen3-8b", "--codecs", "int9"), "unknown codec 'int9'"),
        (("--model", "qwen3-8b", "--head", "on"), "option head is 'on'"),
        (("--model", "qwen3-8b", "--memory-cap", "lots"), "memory_cap is 'lots'"),
        (("--model", "qwen3-8b", "--memory-cap", "1TiB"), "memory_cap is 1.00 TiB, but the device"),
    ],
)
def test_misuse_is_told_before_anything_is_traced(
    hilore: Run, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("traced")

    monkeypatch.setattr("hilore_planner.offline.planner.capture", refuse)
    result = hilore("plan", *arguments)
    assert result.code == 1
    assert message in result.err
    assert result.err.startswith("hilore: ")
    assert result.err.count("\n") == 1
