"""Processes that do one job after another: to import and load takes as long as a job."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from hilore_planner.bench.turns import start_worker, tell


class Processes:
    """A process for each thread that asks, started with its first message, and anew after one that ended it.

    Args:
        module: what they run: it reads a line of JSON, answers with one, and so on.
        environment: theirs.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._module = module
        self._environment = environment
        self._own = threading.local()
        self._started: list[subprocess.Popen[str]] = []

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What this thread's process answers; ``error`` says it if the process ended instead."""
        process = self._process()
        assert process.stdout is not None
        tell(process, json.dumps(message))
        for line in process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        del self._own.process
        return {"error": f"the process ended with status {process.wait()}, without an answer"}

    def close(self) -> None:
        """End them all."""
        for process in self._started:
            process.kill()
            process.communicate()

    def _process(self) -> subprocess.Popen[str]:
        if not hasattr(self._own, "process"):
            self._own.process = start_worker(self._module, self._environment)
            self._started.append(self._own.process)
        process: subprocess.Popen[str] = self._own.process
        return process
