"""``hilore bench head``: a language-model head alone, hidden states to loss and back, run in several ways.

All ways of one head are compiled in one process and take turns, so that none has a cooler device than another; heads
are prepared side by side and timed one after another. A head's memory is what it takes at most beyond its inputs, the
gradient of hidden states and that of the weight.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hilore_planner.bench.head_reference import exact_gradients, head_batch, relative_error
from hilore_planner.bench.head_ways import HeadBatch, HeadWay, Level, Run, head_ways
from hilore_planner.bench.runner import Job, Row, run_jobs
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.bench.turns import in_turn
from hilore_planner.peak.measure import measured_peak_bytes
from hilore_planner.profiling import wait

WARM_UPS = 3
ENOUGH_MS = 3000
"""Once a way's timed runs took so long together, it takes no more turns."""
SEED = 0


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What is measured: sizes, and the loss."""

    tokens: int
    hidden: int
    vocabulary: int
    level: Level
    sequence: int = 2560
    """Tokens of one sequence; fewer if that is all there are."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.level} level, {self.tokens} tokens, {self.hidden} x {self.vocabulary}"

    def batch(self, device: torch.device) -> HeadBatch:
        """A random batch."""
        length = min(self.sequence, self.tokens)
        return head_batch(
            sequences=self.tokens // length,
            tokens=length,
            hidden=self.hidden,
            vocabulary=self.vocabulary,
            dtype=getattr(torch, self.dtype),
            device=device,
            seed=SEED,
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A head's ways, compiled and checked: rows without their times, and those that can be timed."""

    batch: HeadBatch
    device: torch.device
    untimed: dict[str, Row]
    runs: dict[str, Run]

    def rows(self, repeats: int) -> list[Row]:
        """With times, for each way; one with an ``error`` where it could not be run."""
        times = _times_ms(self.runs, self.batch, self.device, repeats)
        return [row | times.get(name, {}) for name, row in self.untimed.items()]


def bench_head(
    shapes: Sequence[HeadShape],
    chunks: tuple[int, ...],
    *,
    device: str,
    repeats: int,
    side_by_side: int,
) -> list[Row]:
    """Rows of every shape, each measured in a process of its own."""
    rows: list[Row] = []
    common = {"device": device, "repeats": repeats, "chunks": chunks}
    messages = [{"shape": asdict(shape), **common} for shape in shapes]
    for start in range(0, len(shapes), side_by_side):
        group = slice(start, start + side_by_side)
        answers = in_turn("hilore_planner.bench.head_worker", messages[group])
        for shape, answer in zip(shapes[group], answers, strict=True):
            rows += answer or [_lost(shape)]
            print("\n".join(summary(answer or [])), file=sys.stderr, flush=True)
    return rows


def _lost(shape: HeadShape) -> Row:
    error = "the process ended without an answer; its own output is above"
    return {"setting": shape.name, "variant": "all", "seed": SEED, "error": error}


def bench_update(settings: Sequence[Setting], *, device: str, side_by_side: int) -> list[Row]:
    """Whole updates, compiled and unplanned, planned with a whole head, and planned with a cut one."""
    variants = (
        Variant("unplanned, plain head", "inductor"),
        Variant("planned, head off", "hilore", head="off"),
        Variant("planned", "hilore"),
        Variant("planned, 4 chunks", "hilore", head=4),
    )
    jobs = [Job(setting, variant) for setting in settings for variant in variants]
    return list(run_jobs(jobs, device=device, side_by_side=side_by_side))


def prepare(shape: HeadShape, chunks: tuple[int, ...], device: torch.device) -> Prepared:
    """Compile and run every way, and compare its gradients with the exact ones."""
    batch = shape.batch(device)
    exact = exact_gradients(batch, shape.level)
    tried = {
        way.name: _tried(way, batch, exact, shape, device) for way in head_ways(shape.level, chunks)
    }
    del exact
    if device.type == "cuda":
        torch.cuda.empty_cache()  # others prepare on the same device
    runs = {name: run for name, (run, _) in tried.items() if run is not None}
    return Prepared(batch, device, {name: row for name, (_, row) in tried.items()}, runs)


def _tried(
    way: HeadWay,
    batch: HeadBatch,
    exact: tuple[Tensor, Tensor],
    shape: HeadShape,
    device: torch.device,
) -> tuple[Run | None, Row]:
    """Compile and run a way; its errors and its memory."""
    row: Row = {"setting": shape.name, "variant": way.name, "seed": SEED}
    row |= {"library": way.library} if way.library else {}
    start = time.perf_counter()
    if way.run is None:
        return None, row | {"error": way.reason}
    try:
        found = _gradients(way.run, batch)
        errors = [relative_error(mine, theirs) for mine, theirs in zip(found, exact, strict=True)]
        gradient_bytes = sum(gradient.nbytes for gradient in found)
        del found
        for _ in range(WARM_UPS):
            measured = measured_peak_bytes(lambda: _gradients(way.run, batch), device)  # type: ignore[arg-type]
    except Exception as error:
        return None, row | {"error": f"{type(error).__name__}: {error}"[:500]}
    row |= {
        "hidden_gradient_error": errors[0],
        "weight_gradient_error": errors[1],
        "head_bytes": measured.added_bytes - gradient_bytes,
        "first_call_seconds": round(time.perf_counter() - start, 1),
    }
    print(f"{row['setting']}  {row['variant']}  ready", file=sys.stderr, flush=True)
    return way.run, row


def _gradients(run: Run, batch: HeadBatch) -> tuple[Tensor, Tensor]:
    of_hidden, of_weight = torch.autograd.grad(run(batch), [batch.hidden, batch.weight])
    return of_hidden, of_weight


def _times_ms(
    runs: dict[str, Run], batch: HeadBatch, device: torch.device, repeats: int
) -> dict[str, Row]:
    """Median, fastest and slowest time of each way; in every round each has its turn, but for those that took long."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if sum(times[name]) < ENOUGH_MS:
                times[name].append(_time_ms(run, batch, device))
    return {
        name: {
            "time_ms": round(statistics.median(found), 3),
            "time_ms_min": round(min(found), 3),
            "time_ms_max": round(max(found), 3),
        }
        for name, found in times.items()
    }


def _time_ms(run: Run, batch: HeadBatch, device: torch.device) -> float:
    """Of one run, on the device's own clock if it has one; it is launched while the device works at another."""
    wait(device)
    if device.type != "cuda":
        start = time.perf_counter()
        _gradients(run, batch)
        return 1e3 * (time.perf_counter() - start)
    cuda: Any = torch.cuda
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    _gradients(run, batch)
    begin.record()
    _gradients(run, batch)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def summary(rows: Sequence[Row]) -> list[str]:
    """Each way against the plain one of its setting."""
    plain = {row["setting"]: row for row in rows if row["variant"] == "plain"}
    lines = []
    for row in rows:
        start = f"{row['setting']}, {row['variant']}: "
        if "error" in row:
            lines.append(start + row["error"])
        elif row["setting"] in plain and "head_bytes" in row:
            ratio = row["time_ms"] / plain[row["setting"]]["time_ms"]
            lines.append(
                f"{start}{row['time_ms']:.2f} ms ({ratio:.3f}), {row['head_bytes'] / 2**20:.0f} MiB, gradients off by "
                f"{row['hidden_gradient_error']:.2e} and {row['weight_gradient_error']:.2e}"
            )
        else:
            peak = row["measured_peak_bytes"] / 2**30
            lines.append(f"{start}{row['time_ms']:.1f} ms, peak {peak:.2f} GiB")
    return lines
