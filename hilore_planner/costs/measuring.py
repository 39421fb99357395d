"""Measure samples into a table, one after another, showing how far it is."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hilore_planner.costs.sample import Sample
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.costs.table import CostTable, Entry
from hilore_planner.passes import compat

_SILENT_SECONDS = 2.0


def measure(table: CostTable, stopwatch: Stopwatch, samples: Sequence[Sample]) -> None:
    """Time what the table does not know; a bar on stderr shows progress from two seconds on."""
    progress = Progress(
        TextColumn("hilore: measuring costs"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task("", total=len(samples))
    start = time.monotonic()
    try:
        with table.measuring():
            for sample in samples:
                if time.monotonic() - start > _SILENT_SECONDS:
                    progress.start()
                if table.get(sample.key) is None:
                    keys = [sample.key, *filter(None, [sample.shape_key])]
                    table.add(keys, _measured(stopwatch, sample))
                progress.update(task, advance=1, description=sample.what)
    finally:
        progress.stop()
        if stopwatch.device.type == "cuda":
            torch.cuda.empty_cache()  # the update that is being planned wants the memory


def _measured(stopwatch: Stopwatch, sample: Sample) -> Entry:
    try:
        with compat.without_modes():
            return Entry(sample.what, stopwatch.time_ns(sample))
    except torch.OutOfMemoryError:
        return Entry(sample.what, None, "out of memory when it was to be measured", True)
    except (
        Exception
    ) as error:  # whatever a kernel or the compiler may raise: the work is priced otherwise
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return Entry(sample.what, None, text[:200])
