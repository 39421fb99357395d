"""Progress of a calibration: a bar on a terminal, lines where stderr is a file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol


class Steps(Protocol):
    """Counts passes over the graph."""

    def say(self, what: str) -> None:
        """Name what is going on."""
        ...

    def more(self, count: int) -> None:
        """Announce passes."""
        ...

    def done(self) -> None:
        """One pass is done."""
        ...


class _Hidden:
    def say(self, what: str) -> None: ...

    def more(self, count: int) -> None: ...

    def done(self) -> None: ...


class _Lines:
    """A line whenever something new goes on: what is logged by a batch system can be read as well."""

    def __init__(self, title: str) -> None:
        self._title, self._start = title, time.monotonic()
        self._done = 0

    def say(self, what: str) -> None:
        seconds = time.monotonic() - self._start
        line = f"hilore: {self._title}: {what}; {self._done} passes in {seconds:.0f} s"
        print(line, file=sys.stderr, flush=True)

    def more(self, count: int) -> None: ...

    def done(self) -> None:
        self._done += 1


@contextlib.contextmanager
def shown(title: str, is_shown: bool) -> Iterator[Steps]:
    """A progress bar on stderr, gone when done; lines where stderr is no terminal; nothing where it is not wanted."""
    if not is_shown:
        yield _Hidden()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=0)

        class Bar:
            total = 0

            def say(self, what: str) -> None:
                progress.update(task, description=f"{title.capitalize()}: {what}")

            def more(self, count: int) -> None:
                self.total += count
                progress.update(task, total=self.total)

            def done(self) -> None:
                progress.advance(task)

        yield Bar()
