"""Processes that prepare side by side and measure one at a time, so that their timings do not disturb each other.

A worker is a module run by itself. It reads one line of JSON, prepares, prints ``ready``, waits for a line, measures,
and prints its answer: one line of JSON, at once if there is nothing to measure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

READY = "ready"


def in_turn(module: str, messages: Sequence[Any]) -> Iterator[Any]:
    """Start a worker for each message, wait until all are ready, and yield their answers; None of one that was lost."""
    workers = [_start(module, message) for message in messages]
    with ThreadPoolExecutor(len(workers)) as waiting:
        lines = list(waiting.map(lambda worker: _pipe(worker.stdout).readline(), workers))
    for worker, line in zip(workers, lines, strict=True):
        if line.strip() == READY:
            _pipe(worker.stdin).write("go\n")
            _pipe(worker.stdin).flush()
            line = _pipe(worker.stdout).readline()
        worker.communicate()
        yield json.loads(line) if line.startswith(("{", "[")) else None


def ready() -> None:
    """Of a worker: say that all is prepared, and wait for its turn."""
    print(READY, flush=True)
    sys.stdin.readline()


def _start(module: str, message: Any) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    _pipe(worker.stdin).write(json.dumps(message) + "\n")
    _pipe(worker.stdin).flush()
    return worker


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
