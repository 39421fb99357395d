from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hilore_planner.errors import PlanFileError
from hilore_planner.plan import SCHEMA_VERSION, PlacementPlan
from tests.plan_cases import toy_plan


def _edited(tmp_path: Path, *keys: str | int, value: object) -> Path:
    """A saved plan whose field at ``keys`` has been set to ``value``."""
    path = tmp_path / "plan.json"
    toy_plan().save(path)
    raw = json.loads(path.read_text())
    target: Any = raw
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = value
    path.write_text(json.dumps(raw))
    return path


def test_a_saved_plan_loads_as_it_was(tmp_path: Path) -> None:
    plan = toy_plan()
    plan.save(tmp_path / "plan.json")
    assert PlacementPlan.load(tmp_path / "plan.json") == plan


def test_each_unit_position_source_and_action_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = toy_plan()
    plan.save(path)
    lines = path.read_text().splitlines()
    for unit in plan.problem.units:
        assert sum(f'"name": "{unit.name}"' in line for line in lines) == 1
        assert f'      "{unit.name}": "{plan.solution.placement[unit.name]}"' in [
            line.rstrip(",") for line in lines
        ]
    raw = json.loads(path.read_text())
    assert list(raw) == sorted(raw)
    assert raw["schema"] == SCHEMA_VERSION


def test_one_changed_action_changes_few_lines(tmp_path: Path) -> None:
    toy_plan().save(tmp_path / "a.json")
    toy_plan(actions={"layers.2.norm": "store"}).save(tmp_path / "b.json")
    before = (tmp_path / "a.json").read_text().splitlines()
    after = (tmp_path / "b.json").read_text().splitlines()
    assert len(before) == len(after)
    changed = [line.strip() for line, other in zip(before, after, strict=True) if line != other]
    assert '"layers.2.norm": "recompute",' in changed
    # Besides the action: objective, peak bytes and saved bytes.
    assert {line.split(":")[0] for line in changed} <= {
        '"layers.2.norm"',
        '"objective_ns"',
        '"peak_bytes"',
        '"peak_position"',
        '"saved_bytes"',
    }


def test_what_is_not_there_or_not_a_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(PlanFileError, match=r"cannot read plan .*plan.json: No such file"):
        PlacementPlan.load(path)
    with pytest.raises(PlanFileError, match="Is a directory"):
        PlacementPlan.load(tmp_path)
    path.write_text("")
    with pytest.raises(PlanFileError, match="is empty"):
        PlacementPlan.load(path)
    path.write_text("layers: 3")
    with pytest.raises(PlanFileError, match="is not JSON"):
        PlacementPlan.load(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(PlanFileError, match="is not JSON"):
        PlacementPlan.load(path)
    for foreign in ("[1, 2]", "3", '{"model": "llama"}'):
        path.write_text(foreign)
        with pytest.raises(PlanFileError, match="is JSON but no plan"):
            PlacementPlan.load(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_called_that(tmp_path: Path, share: float) -> None:
    path = tmp_path / "plan.json"
    toy_plan().save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(PlanFileError, match=r"plan .* is cut short after \d+ bytes"):
        PlacementPlan.load(path)


@pytest.mark.parametrize("schema", [SCHEMA_VERSION + 1, 0, "1", None])
def test_another_schema_is_refused(tmp_path: Path, schema: object) -> None:
    path = _edited(tmp_path, "schema", value=schema)
    with pytest.raises(PlanFileError, match=rf"has schema {schema!r}; this version reads schema 1"):
        PlacementPlan.load(path)


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("problem", "units", 3, "kept_bytes"), "much", r"got `str` - at .*units\[3\].kept_bytes"),
        (("problem", "units", 3, "kept_bytes"), 1.5, r"\(unit 'layers.0.mlp.gate_proj'\)"),
        (("problem", "units", 3, "keep"), 1, r"unknown field `\$.problem.units\[3\].keep` \(unit"),
        (("problem", "units", 3, "parents"), None, "Expected `array`, got `null`"),
        (("solution", "status"), "great", r"Invalid enum value 'great' - at `\$.solution.status`"),
        (("notes",), "mine", r"unknown field `\$.notes`"),
        (("problem", "units"), {}, r"Expected `array`"),
    ],
)
def test_a_wrong_field_is_refused_with_its_path(
    tmp_path: Path, keys: tuple[str | int, ...], value: object, says: str
) -> None:
    path = _edited(tmp_path, *keys, value=value)
    with pytest.raises(PlanFileError, match=says):
        PlacementPlan.load(path)


def test_a_missing_field_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    toy_plan().save(path)
    raw = json.loads(path.read_text())
    del raw["problem"]["units"][2]["made_at"]
    path.write_text(json.dumps(raw))
    with pytest.raises(PlanFileError, match=r"missing required field `made_at` .*'layers.0.attn"):
        PlacementPlan.load(path)


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    toy_plan().save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PlanFileError, match=r"cannot write plan .*: No space left on device"):
        toy_plan(layers=2).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match=r"cannot write plan .*none/plan.json: No such file"):
        toy_plan().save(tmp_path / "none" / "plan.json")
