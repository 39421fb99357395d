"""What is seen of a calibration's progress."""

from __future__ import annotations

import re

import pytest

from hilore_planner.calibration.progress import shown


def test_a_file_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("calibrating", True) as steps:
        steps.say("batch 1")
        steps.more(2)
        steps.done()
        steps.done()
        steps.say("batch 2")
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"hilore: calibrating: batch 1; 0 passes in \d+ s", lines[0])
    assert re.fullmatch(r"hilore: calibrating: batch 2; 2 passes in \d+ s", lines[1])


def test_nothing_is_shown_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("calibrating", False) as steps:
        steps.say("batch 1")
        steps.done()
    assert capsys.readouterr().err == ""
