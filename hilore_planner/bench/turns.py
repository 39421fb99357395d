"""Processes that prepare side by side and measure one at a time, so that their timings do not disturb each other.

A worker is a module run by itself. It reads one line of JSON, prepares, prints ``ready``, waits for a line, measures,
and prints its answer: one line of JSON, at once if there is nothing to measure. Or ``ready`` once more, to go on when
others have had their turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import IO, Any

READY = "ready"
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
"""Environment variable: processes that compile kernels for one worker."""


def in_turn(
    module: str, messages: Sequence[Any], then: Callable[[], Sequence[Any]] = tuple, *, led: int = 0
) -> Iterator[Any]:
    """Start a worker for each message, wait until all are ready, and yield their answers; None of one that was lost.

    Workers measure one after another, as often as they ask to, and answer in the order of their messages.
    Before that, workers are readied for the messages that ``then`` gives once the first are ready. They are no more
    than ``led``: so many are started at once, as they have much to import.
    """
    first = [start_worker(module, _shared(len(messages))) for _ in messages]
    spare = [start_worker(module, _shared(led)) for _ in range(led)]
    workers = [*first, *spare]
    try:
        lines = _ready_lines(first, messages)
        lines += _ready_lines(spare, then())
        yield from _answers(workers, lines)
    finally:
        _end(workers)
        for worker in workers:
            with worker:  # closes its pipes and waits for its end
                pass


def _ready_lines(workers: Sequence[subprocess.Popen[str]], messages: Sequence[Any]) -> list[str]:
    """What workers say first to messages, once all have; there may be more workers than messages."""
    told = workers[: len(messages)]
    for worker, message in zip(told, messages, strict=True):
        tell(worker, json.dumps(message))
    with ThreadPoolExecutor(max(1, len(told))) as waiting:
        return list(waiting.map(lambda worker: _pipe(worker.stdout).readline(), told))


class Workers:
    """Workers of one module, each of which measures as soon as it is ready and no other does."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._turn = Lock()
        self._running: list[subprocess.Popen[str]] = []

    def answer(self, message: Any) -> Any:
        """What a new worker answers; None if it was lost. May be called by several threads."""
        worker = start_worker(self._module, os.environ)
        tell(worker, json.dumps(message))
        self._running.append(worker)
        line = _pipe(worker.stdout).readline()
        with self._turn:
            answer = _answer(worker, line)
            worker.communicate()  # until the memory it had is free
        self._running.remove(worker)
        return answer

    def end(self) -> None:
        """End those that still run: their answers are lost."""
        _end(self._running)


def _end(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        worker.kill()


def _answers(workers: Sequence[subprocess.Popen[str]], lines: Sequence[str]) -> Iterator[Any]:
    """What workers say in the end, in their order, given the first line of each; there may be more workers."""
    waiting, answers = deque(enumerate(lines)), dict[int, Any]()
    for place in range(len(lines)):
        while place not in answers:
            turn, line = waiting.popleft()
            if _is_ready(line):
                waiting.append((turn, _next_line(workers[turn])))
            else:
                answers[turn] = _parsed(line)
        yield answers[place]


def _answer(worker: subprocess.Popen[str], line: str) -> Any:
    """What a worker says in the end, given the first line it said."""
    while _is_ready(line):
        line = _next_line(worker)
    return _parsed(line)


def _is_ready(line: str) -> bool:
    return line.strip() == READY


def _next_line(worker: subprocess.Popen[str]) -> str:
    """What a worker says after its turn."""
    tell(worker, "go")
    return _pipe(worker.stdout).readline()


def _parsed(line: str) -> Any:
    return json.loads(line) if line.startswith(("{", "[")) else None


class Turn:
    """Of a worker: its turn to measure.

    Attributes:
        waited_seconds: until it came, each time; 0.0 before.
    """

    def __init__(self) -> None:
        self.waited_seconds = 0.0
        self._is_taken = False

    def take(self) -> None:
        """Say that all is prepared, and wait; nothing where the turn was taken before."""
        if not self._is_taken:
            self.take_next()

    def take_next(self) -> None:
        """Say that all is prepared, or measured for now, and wait until the turn comes, once more where it had."""
        self._is_taken = True
        start = time.perf_counter()
        print(READY, flush=True)
        if not sys.stdin.readline():
            sys.exit("nobody is there to measure for")
        self.waited_seconds += time.perf_counter() - start


def _shared(workers: int) -> Mapping[str, str]:
    """The environment of one of some workers: its share of the processors compiles, unless a number is set."""
    share = len(os.sched_getaffinity(0)) // max(1, workers)
    return {COMPILERS: str(max(2, share)), **os.environ}


def start_worker(module: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A process that runs a module, its input and output piped."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def tell(worker: subprocess.Popen[str], line: str) -> None:
    """Write a line to its input."""
    with contextlib.suppress(BrokenPipeError):  # one that is gone has no answer either
        _pipe(worker.stdin).write(f"{line}\n")
        _pipe(worker.stdin).flush()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
