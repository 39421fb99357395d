"""Run variants in processes of their own, compiling side by side and measuring one at a time."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.bench.turns import Workers, in_turn

Row = dict[str, Any]
_WORKER = "hilore_planner.bench.worker"


@dataclass(frozen=True, slots=True)
class Job:
    """One variant of one setting; ``plan`` keeps its plan file."""

    setting: Setting
    variant: Variant
    plan: Path | None = None


def run_jobs(jobs: Sequence[Job], *, device: str, side_by_side: int) -> Iterator[Row]:
    """Rows of all jobs in order, each as it comes; a job that fails gives a row with ``error``."""
    for start in range(0, len(jobs), side_by_side):
        yield from _run_group(jobs[start : start + side_by_side], device)


def run_as_ready(
    jobs: Sequence[Job], then: Callable[[Row], Sequence[Job]], *, device: str, side_by_side: int
) -> Iterator[Row]:
    """Rows as they come, while other jobs compile; ``then`` says which jobs a row leads to.

    One measures at a time, but beside others that compile, and the next job starts as soon as one has ended: where
    memory matters more than the last percent of a timing.
    """
    start, workers = time.monotonic(), Workers(_WORKER)

    def run(job: Job) -> Row:
        return workers.answer(_message(job, device)) or _lost(job)

    pool = ThreadPoolExecutor(side_by_side)
    try:
        running = {pool.submit(run, job) for job in jobs}
        while running:
            done, running = wait_for(running, return_when=FIRST_COMPLETED)
            for future in done:
                row = future.result()
                _say(row, start)
                running |= {pool.submit(run, job) for job in then(row)}
                yield row
    finally:  # at once, also where it is interrupted
        pool.shutdown(wait=False, cancel_futures=True)
        workers.end()


def run_led(
    lead: Job, then: Callable[[], Sequence[Job]], *, device: str, side_by_side: int
) -> Iterator[Row]:
    """Rows of a job, and of those that ``then`` gives once it has compiled: they compile before any is measured.

    Where they are more than ``side_by_side``, the others follow, group by group.
    """
    jobs: list[Job] = []

    def beside() -> list[Job]:
        jobs.extend(then())
        return jobs[:side_by_side]

    yield from _run_group([lead], device, beside, led=side_by_side)
    yield from run_jobs(jobs[side_by_side:], device=device, side_by_side=side_by_side)


def _run_group(
    jobs: Sequence[Job], device: str, then: Callable[[], Sequence[Job]] = tuple, *, led: int = 0
) -> Iterator[Row]:
    start, all_jobs = time.monotonic(), list(jobs)

    def messages() -> list[dict[str, Any]]:
        more = then()
        all_jobs.extend(more)
        return [_message(job, device) for job in more]

    answers = in_turn(_WORKER, [_message(job, device) for job in jobs], messages, led=led)
    for place, answer in enumerate(answers):
        row = answer or _lost(all_jobs[place])
        _say(row, start)
        yield row


def _say(row: Row, start: float) -> None:
    print(f"{time.monotonic() - start:5.0f} s  {_line(row)}", file=sys.stderr, flush=True)


def _message(job: Job, device: str) -> dict[str, Any]:
    return {
        "setting": asdict(job.setting),
        "variant": job.variant.as_dict(),
        "device": device,
        "plan": str(job.plan) if job.plan else None,
    }


def _lost(job: Job) -> Row:
    return {
        "setting": job.setting.name,
        "variant": job.variant.name,
        "cap_bytes": job.variant.cap_bytes,
        "error": "the process ended without an answer; its own output is above",
    }


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['setting']}  {row['variant']}  {row['error']}"
    peak = row["measured_peak_bytes"] / 2**30
    predicted = row.get("predicted_peak_bytes")
    ratio = (
        f"  predicted/measured {predicted / row['measured_peak_bytes']:.4f}" if predicted else ""
    )
    return f"{row['setting']}  {row['variant']}  {row['time_ms']:.1f} ms  {peak:.3f} GiB{ratio}"


def write_record(path: Path, rows: Iterable[Row], *, device: str) -> None:
    """Write a result file: where, with what and when its rows were measured."""
    record = {
        "command": " ".join(["hilore", *_without_output(sys.argv[1:])]),
        "commit": this_commit(),
        "device": _device_name(device),
        "torch": str(torch.__version__),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def recorded(path: Path, rows: Iterable[Row], *, device: str) -> list[Row]:
    """All rows; each is in the file as soon as it is there, so that what is cut short leaves some."""
    done: list[Row] = []
    for row in rows:
        done.append(row)
        write_record(path, done, device=device)
    return done


def recorded_settings(
    path: Path, parts: Iterable[Sequence[Row]], *, device: str, before: Sequence[Row]
) -> list[Row]:
    """All rows in the end. Each part is all there is of one setting so far, and in the file at once.

    It takes the place of what there was of its setting, also of that among the rows ``before``; others stay.
    """
    done = list(before)
    for part in parts:
        names = {row["setting"] for row in part}
        done = [*(row for row in done if row["setting"] not in names), *part]
        write_record(path, done, device=device)
    return done


def earlier_rows(path: Path, *, device: str) -> list[Row]:
    """Rows of a record that is there, each with its commit; none if it is of another device or torch."""
    if not path.is_file():
        return []
    record = json.loads(path.read_text())
    if (record["device"], record["torch"]) != (_device_name(device), str(torch.__version__)):
        return []
    return [{"commit": record["commit"], **row} for row in record["rows"]]


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"


def _without_output(arguments: Sequence[str]) -> list[str]:
    """A command line without the file it writes, which is a matter of the machine."""
    kept = list(arguments)
    for option in ("-o", "--output"):
        if option in kept:
            place = kept.index(option)
            del kept[place : place + 2]
    return kept


def this_commit() -> str:
    """Commit of the checkout; ``HILORE_COMMIT`` where the code was copied without its history."""
    import os

    if given := os.environ.get("HILORE_COMMIT"):
        return given
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
