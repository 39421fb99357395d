"""Comparison with files of expected text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True, slots=True)
class Golden:
    """Compares text with ``tests/golden/NAME``; ``--update-golden`` writes the file instead."""

    update: bool

    def check(self, name: str, text: str) -> None:
        path = FOLDER / name
        if self.update:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; see --update-golden"
