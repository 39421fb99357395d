"""One variant in a process of its own: compile, say so, wait for the device, measure, print one row.

Several workers compile side by side; the runner lets them measure one after another, so that timings do not disturb
each other. Planned updates do not even run before: several at once may be more than the device holds.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hilore_planner.backend import hilore
from hilore_planner.bench.attributed import attributed
from hilore_planner.bench.models import batch_of, model_of
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.bench.trial import storage_bytes, time_ms
from hilore_planner.bench.turns import Turn
from hilore_planner.errors import NoPlacementError
from hilore_planner.grpo.actor import actor_loss, add_adapters
from hilore_planner.passes import compat
from hilore_planner.peak.measure import measured_peak_bytes
from hilore_planner.plan import PlacementPlan
from hilore_planner.profiling import NAMED_KERNELS, wait

WARM_UPS = 2
REPEATS = 8
_STEADY_MS = 1000.0
_ATTRIBUTED = NAMED_KERNELS | {"fx_graph_cache": False}
"""Nothing is known of the steps of a graph that another process compiled, for a cap that leads to the same plan."""


class Update:
    """A model, a batch, and the function that runs forward and backward."""

    def __init__(
        self, setting: Setting, variant: Variant, device: torch.device, plan: Path, turn: Turn
    ) -> None:
        self.model = model_of(setting, device)
        if variant.kind in ("gc", "eager-gc"):
            self.model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        if setting.lora:
            add_adapters(self.model, setting.lora)
            if variant.kind in ("gc", "eager-gc"):
                self.model.enable_input_require_grads()
        self.batch = batch_of(setting, self.model, seed=setting.seed + 1)
        self.batch.advantages[: setting.dead] = 0
        if variant.drop_dead:
            self.batch = self.batch.without_dead()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.accumulate = setting.accumulate
        self._make_optimizer_state(device)
        self.steps = plan.with_name(f"{plan.stem}-steps")
        loss = actor_loss(self.model, prompt=setting.prompt)
        self.loss = _compiled(loss, variant, plan, self.steps, turn)

    def _make_optimizer_state(self, device: torch.device) -> None:
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-6, fused=device.type == "cuda")
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.clear()
        _make_room(device)

    @property
    def held_bytes(self) -> int:
        """Storages of weights, buffers and batch."""
        return storage_bytes([*self.model.parameters(), *self.model.buffers(), *self.batch])

    def clear(self) -> None:
        """Drop the gradients, unless the setting accumulates them."""
        if not self.accumulate:
            self.optimizer.zero_grad(set_to_none=True)

    def run(self) -> None:
        """Forward and backward."""
        self.loss(*self.batch).backward()


def _compiled(
    loss: Callable[..., Any], variant: Variant, plan: Path, steps: Path, turn: Turn
) -> Callable[..., Any]:
    match variant.kind:
        case "eager-gc":
            return loss
        case "hilore":
            options: dict[str, Any] = {"plan": str(plan), "gradient_error": variant.gradient_error}
            options |= {"costs": variant.costs, "head": variant.head}
            if variant.attribute:
                options |= {"dump_dir": str(steps), "inductor": _ATTRIBUTED}
            if variant.cap_bytes is not None:
                options["memory_cap"] = variant.cap_bytes
            options["reserved"] = 0
            return torch.compile(
                loss, dynamic=False, backend=_in_turn(turn, hilore), options=options
            )
        case "inductor":
            return torch.compile(loss, dynamic=False, backend=_in_turn(turn, _plain))
        case "budget":
            compat.set_activation_memory_budget(variant.budget)
    return torch.compile(loss, dynamic=False)


def _plain(gm: torch.fx.GraphModule, inputs: Sequence[Any], *, options: None) -> Any:
    """Inductor, unplanned."""
    return compat.compile_graph(gm, inputs, {})


def _in_turn(
    turn: Turn, compiler: Callable[..., Callable[..., Any]]
) -> Callable[..., Callable[..., Any]]:
    """A backend whose compiled code waits for its turn: what it runs before would disturb what others measure."""

    def backend(
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        compiled = compiler(gm, inputs, options=options)
        turn.take()
        return compiled

    return backend


class Rounds(logging.Handler):
    """Counts how often a region was planned and compiled, and says what each time led to."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """One line is logged for each round."""
        if record.msg.startswith("round "):
            self.count += 1
            print(record.getMessage(), file=sys.stderr, flush=True)


@contextmanager
def counted_rounds() -> Iterator[Rounds]:
    """Count the compilations that planning takes meanwhile."""
    logger, rounds = logging.getLogger("hilore_planner.compiling"), Rounds()
    before = logger.level
    logger.addHandler(rounds)
    logger.setLevel(logging.INFO)
    try:
        yield rounds
    finally:
        logger.setLevel(before)
        logger.removeHandler(rounds)


def measure(update: Update, device: torch.device, turn: Turn, turns: int) -> dict[str, Any]:
    """Median time, over all turns, and peak of the update, measured apart: watching the CPU's allocator takes time.

    The queued time is that of one of several updates of which none waits for the one before, as in a trainer: the
    host's work before and after the device's is not in it, and a GPU runs at the clock that its power limit leaves it.
    """
    by_turn = [_times_ms(update, device)]
    for _ in range(turns - 1):
        _make_room(device)
        turn.take_next()
        by_turn.append(_times_ms(update, device))
    times = [time for times in by_turn for time in times]
    count = _queued_count(statistics.median(times), device)
    for _ in range(WARM_UPS):
        queued_ms = time_ms(lambda: _run_all(update, count), device)
    peaks = []
    for _ in range(WARM_UPS):
        peaks.append(measured_peak_bytes(update.run, device).peak_bytes)
        update.clear()
    # The CPU's count starts at zero: what the update is given was allocated before.
    held_bytes = update.held_bytes if device.type == "cpu" else 0
    return {
        "time_ms": round(statistics.median(times), 3),
        "turn_times_ms": [round(statistics.median(times), 3) for times in by_turn],
        "time_ms_min": round(min(times), 3),
        "time_ms_max": round(max(times), 3),
        "queued_time_ms": round(queued_ms / count, 3),
        "measured_peak_bytes": max(peaks) + held_bytes,
    }


def _times_ms(update: Update, device: torch.device) -> list[float]:
    """Of updates one by one, once warm."""
    for _ in range(WARM_UPS):
        update.run()
        update.clear()
    times = []
    for _ in range(REPEATS):
        times.append(time_ms(update.run, device))
        update.clear()
    return times


def _make_room(device: torch.device) -> None:
    """For others, who measure meanwhile."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _queued_count(update_ms: float, device: torch.device) -> int:
    """How many updates are queued: on a GPU a second's work, in which its clock settles."""
    return max(REPEATS, math.ceil(_STEADY_MS / update_ms)) if device.type == "cuda" else REPEATS


def _run_all(update: Update, count: int) -> None:
    for _ in range(count):
        update.run()
        update.clear()


def planned_fields(path: Path) -> dict[str, Any]:
    """What a plan file says, as fields of a row; none where there is no file."""
    if not path.exists():
        return {}
    plan = PlacementPlan.load(path)
    return {
        "status": plan.solution.status,
        "saved_bytes": plan.solution.saved_bytes,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "estimated_peak_bytes": plan.solution.peak_bytes,
        "predicted_time_ns": plan.predicted.time_ns,
        "predicted_gradient_error": plan.predicted_gradient_error,
        "objective_ns": plan.solution.objective_ns,
        "head_ns": plan.head.head_ns,
        "bound_ns": plan.solution.bound_ns,
        "gap": plan.solution.gap,
        "solver_seconds": plan.solution.solver_seconds,
    }


def _run_first(update: Update, device: torch.device, start: float, turn: Turn) -> dict[str, Any]:
    """Compile: run once, and say how long that took since ``start`` without waiting, and what is held then."""
    update.run()
    update.clear()
    wait(device)
    seconds = time.perf_counter() - start - turn.waited_seconds
    row: dict[str, Any] = {"first_call_seconds": round(seconds, 1)}
    _make_room(device)
    if device.type == "cuda":
        row["static_bytes"] = torch.cuda.memory_allocated(device)
    return row


def main() -> None:
    """Read one job from standard input, answer on standard output."""
    job = json.loads(sys.stdin.readline())
    setting, variant = Setting(**job["setting"]), Variant(**job["variant"])
    device, turn = torch.device(job["device"]), Turn()
    row: dict[str, Any] = {
        "setting": setting.name,
        "variant": variant.name,
        "cap_bytes": variant.cap_bytes,
        "gradient_error": variant.gradient_error,
        "seed": setting.seed,
    }
    with tempfile.TemporaryDirectory() as folder, counted_rounds() as rounds:
        plan = Path(job.get("plan") or Path(folder) / "plan.json")
        try:
            start = time.perf_counter()
            update = Update(setting, variant, device, plan, turn)
            row |= _run_first(update, device, start, turn)
            turn.take()
            row |= measure(update, device, turn, variant.turns) | planned_fields(plan)
            row |= {"refused": False, "rounds": rounds.count} if variant.kind == "hilore" else {}
            if "predicted_peak_bytes" in row:
                row["ratio"] = round(row["predicted_peak_bytes"] / row["measured_peak_bytes"], 6)
            if variant.attribute:
                row |= attributed(lambda: _run_all(update, 1), update.steps, device)
            row["tokens_per_second"] = round(1e3 * setting.tokens / row["time_ms"])
        except NoPlacementError as error:
            row |= {
                "refused": True,
                "rounds": rounds.count,
                "error": f"{type(error).__name__}: {error}",
            }
            row["smallest_feasible_cap_bytes"] = error.smallest_feasible_cap_bytes
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:1500]
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
