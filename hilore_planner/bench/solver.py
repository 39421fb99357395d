"""``hilore bench solver``: how long does a plan take to solve, for one cap, another, and many?

The problems are whole models' updates as ``hilore plan`` traces them. Each is solved exact and compressed, over caps
evenly spaced from the smallest that something fits to what storing everything takes.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from hilore_planner.bench.peak import ladder_caps
from hilore_planner.errors import OptionError
from hilore_planner.offline.planner import Request, trace
from hilore_planner.offline.workload import Workload, fake_update
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import PlacementProblem, Solution, solve, sweep

Row = dict[str, Any]
T = TypeVar("T")

MODELS = (
    "qwen2.5-0.5b",
    "qwen2.5-0.5b+lora16",
    "qwen2.5-3b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.1-405b+lora16",
)
"""Of 24, 36, 80 and 126 layers; every weight is trained, or adapters of rank 16."""

_LORA = "+lora"
"""Between a model's name and the rank of its adapters."""

COMPRESSED_ERROR = 0.02
_DEVICE, _OPTIMIZER = "h200", "adamw"
_SEQUENCES, _PROMPT, _RESPONSE = 4, 512, 2048
_ROOMY_BYTES = 2**60
"""A cap under which everything is stored."""

_SINGLES = 5
"""Caps solved one at a time, between the ends of the range."""


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A result, how long it took, and how much of that was this process at work."""

    result: T
    seconds: float
    cpu_seconds: float


def timed(call: Callable[[], T]) -> Timed[T]:
    """Call and time."""
    start, cpu_start = time.perf_counter(), time.process_time()
    result = call()
    return Timed(result, time.perf_counter() - start, time.process_time() - cpu_start)


def bench_solver(
    models: Sequence[str], plans: Path, *, caps: int, relative_gap: float
) -> Iterator[Row]:
    """Two rows for each model, exact and compressed, as they come.

    Args:
        models: names that ``hilore plan`` knows, with ``+lora16`` for adapters of rank 16, or those of
            plan files in ``plans``.
        plans: folder of their plan files; those that are missing are made.
        caps: how many a sweep has.
        relative_gap: what is proven of every solution, if time allows.

    Raises:
        OptionError: an unknown model.
        PlanFileError: a plan file that cannot be read or written.
    """
    for model in models:
        problem = plan_of(model, plans).problem
        for variant, error in (("exact", 0.0), ("compressed", COMPRESSED_ERROR)):
            asked = replace(problem, gradient_error=error)
            row = {"setting": model, "variant": variant}
            row |= measure(asked, caps=caps, relative_gap=relative_gap)
            print(summary([row])[0], file=sys.stderr, flush=True)
            yield row


def plan_of(model: str, plans: Path) -> PlacementPlan:
    """The plan file of a model; made by tracing the model where the folder has none."""
    path = plans / f"{model}.json"
    if path.exists():
        return PlacementPlan.load(path)
    print(f"{model}: tracing", file=sys.stderr, flush=True)
    traced = timed(lambda: _traced(model))
    plans.mkdir(parents=True, exist_ok=True)
    traced.result.save(path)
    print(f"{model}: traced in {traced.seconds:.0f} s", file=sys.stderr, flush=True)
    return traced.result


def _traced(model: str) -> PlacementPlan:
    request = Request.parse(device=_DEVICE, optimizer=_OPTIMIZER, gradient_error=COMPRESSED_ERROR)
    name, _, rank = model.partition(_LORA)
    if rank and not rank.isdecimal():
        raise OptionError(
            f"model {model!r}: the rank of its adapters is {rank!r}; accepted: digits"
        )
    workload = Workload(name, _SEQUENCES, _PROMPT, _RESPONSE, lora=int(rank or 0))
    update = fake_update(workload)
    traced = trace(request, update.loss, *update.inputs)
    plan = traced.plan(_ROOMY_BYTES)
    return replace(plan, region=str(workload))


def measure(problem: PlacementProblem, *, caps: int, relative_gap: float) -> Row:
    """What solving a problem took; sizes, times, gaps and statuses.

    Raises:
        OptionError: nothing fits any cap.
    """

    def solved(cap_bytes: int, start: Solution | None = None) -> Timed[Solution]:
        asked = replace(problem, memory_cap_bytes=cap_bytes)
        placement = None if start is None else start.placement
        return timed(lambda: solve(asked, relative_gap=relative_gap, warm_start=placement))

    roomy, floor = solved(_ROOMY_BYTES).result, solved(1)
    least_bytes = floor.result.smallest_feasible_cap_bytes
    if least_bytes is None:
        raise OptionError("the problem has no placement under any memory cap")
    singles = ladder_caps(least_bytes, roomy.peak_bytes, _SINGLES + 2)[1:-1]
    firsts = [solved(cap) for cap in singles]
    agains = [solved(cap, other.result) for cap, other in zip(singles[1:], firsts, strict=False)]
    ladder, known = ladder_caps(least_bytes, roomy.peak_bytes, caps), floor.result.witness
    swept = timed(lambda: sweep(problem, ladder, relative_gap=relative_gap, warm_start=known))
    alone = [each.result for each in (*firsts, *agains)]
    return {
        **_size(problem),
        "smallest_feasible_cap_bytes": least_bytes,
        **_spread_of("floor", [floor]),
        **_spread_of("first_solve", firsts),
        **_spread_of("re_solve", agains),
        **_spread_of("sweep", [swept]),
        "caps": caps,
        "gap": max(solution.gap for solution in alone),
        "status": dict(Counter(solution.status for solution in alone)),
        "sweep_gap": max(solution.gap for solution in swept.result),
        "sweep_status": dict(Counter(solution.status for solution in swept.result)),
        "relative_gap": relative_gap,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def _size(problem: PlacementProblem) -> Row:
    return {
        "layers": len({unit.layer for unit in problem.units if unit.layer is not None}),
        "units": len(problem.units),
        "positions": len(problem.positions),
        "forms": max(len(unit.codecs) for unit in problem.units),
        "gradient_error": problem.gradient_error,
    }


def _spread_of(name: str, times: Sequence[Timed[Any]]) -> Row:
    seconds = [each.seconds for each in times]
    return {
        f"{name}_seconds": statistics.median(seconds),
        f"{name}_seconds_max": max(seconds),
        f"{name}_cpu_seconds_max": max(each.cpu_seconds for each in times),
    }


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each row."""
    return [
        f"{row['setting']}, {row['variant']}: {row['layers']} layers, {row['units']} units; "
        f"first solve {row['first_solve_seconds']:.2f} s (at most {row['first_solve_seconds_max']:.2f}), "
        f"re-solve {row['re_solve_seconds']:.2f} s (at most {row['re_solve_seconds_max']:.2f}), gap at most "
        f"{row['gap']:.2%}; {row['caps']} caps {row['sweep_seconds']:.2f} s, gap at most {row['sweep_gap']:.2%}"
        for row in rows
    ]
