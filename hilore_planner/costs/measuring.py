"""Measure samples into a table, one after another, showing how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hilore_planner.costs.sample import Run, Sample
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.costs.table import CostTable, Entry
from hilore_planner.passes import compat

_SILENT_SECONDS = 2.0

T = TypeVar("T")


def measure(table: CostTable, stopwatch: Stopwatch, samples: Sequence[Sample]) -> None:
    """Time what the table does not know; a bar on stderr shows progress from two seconds on.

    All are readied first: kernels are compiled side by side, but timed one after another.
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
            task, start = progress.add_task("", total=2 * len(unknown)), time.monotonic()

            def advance(what: str) -> None:
                if time.monotonic() - start > _SILENT_SECONDS:
                    progress.start()
                progress.update(task, advance=1, description=what)

            for sample, run in _readied(stopwatch, unknown, advance):
                keys = [sample.key, *filter(None, [sample.shape_key])]
                table.add(keys, run if isinstance(run, Entry) else _timed(stopwatch, sample, run))
                advance(sample.what)
    finally:
        progress.stop()
        if stopwatch.device.type == "cuda":
            torch.cuda.empty_cache()  # the update that is being planned wants the memory


def _readied(
    stopwatch: Stopwatch, samples: Sequence[Sample], advance: Callable[[str], None]
) -> list[tuple[Sample, Run | Entry]]:
    """Samples with what runs them, or why that cannot be."""
    if samples:
        compat.start_compilers()
    found = []
    for sample in samples:
        found.append((sample, _tried(sample, partial(stopwatch.ready, sample))))
        advance(f"compiling {sample.what}")
    return found


def _timed(stopwatch: Stopwatch, sample: Sample, run: Run) -> Entry:
    time_ns = _tried(sample, partial(stopwatch.time_ns, sample, run))
    return time_ns if isinstance(time_ns, Entry) else Entry(sample.what, time_ns)


def _tried(sample: Sample, function: Callable[[], T]) -> T | Entry:
    """What a function returns, or an entry that says why it does not."""
    try:
        with compat.without_modes():
            return function()
    except torch.OutOfMemoryError:
        return Entry(sample.what, None, "out of memory when it was to be measured", True)
    except (
        Exception
    ) as error:  # whatever a kernel or the compiler may raise: the work is priced otherwise
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return Entry(sample.what, None, text[:200])
