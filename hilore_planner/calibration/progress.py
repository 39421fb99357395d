"""Progress of a calibration on the terminal."""

from __future__ import annotations

import contextlib
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


@contextlib.contextmanager
def shown(title: str, is_shown: bool) -> Iterator[Steps]:
    """A progress bar on stderr, gone when done; nothing where it is not wanted."""
    if not is_shown:
        yield _Hidden()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=0)

        class Bar:
            total = 0

            def say(self, what: str) -> None:
                progress.update(task, description=f"{title}: {what}")

            def more(self, count: int) -> None:
                self.total += count
                progress.update(task, total=self.total)

            def done(self) -> None:
                progress.advance(task)

        yield Bar()
