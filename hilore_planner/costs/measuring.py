"""Measure samples into a table, showing how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hilore_planner.costs.load import Program
from hilore_planner.costs.sample import Run, Sample
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.costs.table import CostTable, Entry, tried
from hilore_planner.passes import compat

_SILENT_SECONDS = 2.0


def measure(
    table: CostTable, stopwatch: Stopwatch, samples: Sequence[Sample], program: Program
) -> None:
    """Time what the table does not know; a bar on stderr shows progress from two seconds on.

    All are readied first, also while other processes measure: kernels are compiled side by side. They are timed one
    after another, amid what the ``program`` runs; what others have measured meanwhile is not timed again.
    """
    table.reload()
    unknown = [sample for sample in samples if table.get(sample.key) is None]
    if not unknown:
        return
    progress = Progress(
        TextColumn("hilore: measuring costs"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    try:
        task, start = progress.add_task("", total=len(unknown) + 2), time.monotonic()

        def advance(what: str) -> None:
            if time.monotonic() - start > _SILENT_SECONDS:
                progress.start()
            progress.update(task, advance=1, description=what)

        ready, found = _readied(stopwatch, unknown, advance)
        with table.measuring():
            still = [each for each in ready if table.get(each[0].key) is None]
            advance("timing")
            table.add(found | _timed(stopwatch, still, program))
    finally:
        progress.stop()
        if stopwatch.device.type == "cuda":
            torch.cuda.empty_cache()  # the update that is being planned wants the memory


def _readied(
    stopwatch: Stopwatch, samples: Sequence[Sample], advance: Callable[[str], None]
) -> tuple[list[tuple[Sample, Run]], dict[str, Entry]]:
    """What runs each sample, and the reasons of those that nothing does, by all their keys."""
    compat.start_compilers()
    made: list[Run | Entry] = []
    for sample in samples:
        advance(f"compiling {sample.what}")
        made.append(tried(sample.what, partial(stopwatch.ready, sample)))
    advance("waiting for kernels")
    ready, found = [], dict[str, Entry]()
    for sample, run in zip(samples, made, strict=True):
        failed = run if isinstance(run, Entry) else tried(sample.what, run.wait)
        if isinstance(failed, Entry):
            found |= dict.fromkeys(sample.keys, failed)
        elif not isinstance(run, Entry):
            ready.append((sample, run))
    return ready, found


def _timed(
    stopwatch: Stopwatch, ready: Sequence[tuple[Sample, Run]], program: Program
) -> dict[str, Entry]:
    """What was found of each sample, by all its keys."""
    if not ready:
        return {}
    with compat.without_modes():
        entries = stopwatch.times(ready, program)
    found: dict[str, Entry] = {}
    for (sample, _), entry in zip(ready, entries, strict=True):
        found |= dict.fromkeys(sample.keys, entry)
    return found
