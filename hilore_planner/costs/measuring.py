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

    All are readied first: kernels are compiled side by side, but timed one after another, amid what the ``program``
    runs.
    """
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
        with table.measuring():
            unknown = [sample for sample in samples if table.get(sample.key) is None]
            task, start = progress.add_task("", total=len(unknown) + 1), time.monotonic()

            def advance(what: str) -> None:
                if time.monotonic() - start > _SILENT_SECONDS:
                    progress.start()
                progress.update(task, advance=1, description=what)

            if unknown:
                table.add(_measured(stopwatch, unknown, program, advance))
    finally:
        progress.stop()
        if stopwatch.device.type == "cuda":
            torch.cuda.empty_cache()  # the update that is being planned wants the memory


def _measured(
    stopwatch: Stopwatch,
    samples: Sequence[Sample],
    program: Program,
    advance: Callable[[str], None],
) -> dict[str, Entry]:
    """What was found of each sample, by all its keys."""
    compat.start_compilers()
    found: dict[str, Entry] = {}
    ready: list[tuple[Sample, Run]] = []
    for sample in samples:
        advance(f"compiling {sample.what}")
        run = tried(sample.what, partial(stopwatch.ready, sample))
        if isinstance(run, Entry):
            found |= dict.fromkeys(sample.keys, run)
        else:
            ready.append((sample, run))
    advance("timing")
    with compat.without_modes():
        entries = stopwatch.times(ready, program)
    for (sample, _), entry in zip(ready, entries, strict=True):
        found |= dict.fromkeys(sample.keys, entry)
    return found
