"""``docs/losses.md`` says what the registry says, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

from hilore_planner.grpo.dead_rows import blocked_by
from hilore_planner.grpo.registry import LOSSES
from tests.grpo.batches import plain

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")


def test_the_table() -> None:
    rows = re.findall(r"^\| `(\w+/\w+)` \| (\w+) \| (\w+) \| (\w+) \|$", TEXT, re.MULTILINE)
    assert [row[0] for row in rows] == list(LOSSES)
    for name, *said in rows:
        loss = plain(name)
        traits = loss.traits
        holds = (traits.known_before_forward, not traits.coupled, not blocked_by(loss))
        assert said == ["yes" if true else "no" for true in holds], name


def test_only_what_the_text_names_is_approximate() -> None:
    assert [name for name in LOSSES if plain(name).traits.approximate] == ["verl/clip_cov"]


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["live"].kept.tolist() == [0, 1, 2, 3]  # type: ignore[attr-defined]
