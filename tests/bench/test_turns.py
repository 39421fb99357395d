"""Processes that prepare side by side and measure one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hilore_planner.bench.turns import COMPILERS, READY, Workers, _shared, in_turn

SLEEPER = "tests.bench.sleeper"
LONG = 600


def test_each_takes_its_turn_and_answers() -> None:
    assert [seconds for seconds, _ in in_turn(SLEEPER, [(0, 1), (0, 1)])] == [0, 0]
    led = in_turn(SLEEPER, [(0, 1)], lambda: [(0.1, 1), (0.2, 1)], led=3)
    assert [seconds for seconds, _ in led] == [0, 0.1, 0.2]
    workers = Workers(SLEEPER)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(workers.answer, [(0, 1), (0.1, 2)]))
    assert [seconds for seconds, _ in answers] == [0, 0.1]


def test_turns_go_round_until_none_asks_for_another() -> None:
    answers = dict(enumerate(in_turn(SLEEPER, [(0, 3), (0, 1), (0, 2)])))
    times = sorted((time, place) for place, (_, own) in answers.items() for time in own)
    assert [place for _, place in times] == [0, 1, 2, 0, 2, 0]


def test_workers_share_the_processors_that_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv(COMPILERS, raising=False)
    assert [_shared(workers)[COMPILERS] for workers in (1, 5, 14)] == ["16", "3", "2"]
    monkeypatch.setenv(COMPILERS, "1")
    assert _shared(5)[COMPILERS] == "1"


def test_those_that_are_ended_have_no_answer() -> None:
    workers = Workers(SLEEPER)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(workers.answer, (seconds, 1)) for seconds in (LONG, 0)]
        assert answers[1].result() is not None
        workers.end()
        assert answers[0].result() is None


def test_a_worker_whose_starter_is_gone_measures_nothing() -> None:
    command = [sys.executable, "-m", SLEEPER]
    found = subprocess.run(command, input=json.dumps([0, 1]) + "\n", capture_output=True, text=True)
    assert found.stdout.strip() == READY
    assert found.returncode == 1
    assert "nobody is there" in found.stderr
