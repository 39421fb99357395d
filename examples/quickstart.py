"""One GRPO actor update, run three ways: checkpointed, compiled, and planned under a memory cap.

Random weights of Qwen2's shape: small ones on a CPU (two or three minutes, most of it compilation), those of
Qwen2.5-0.5B on a GPU. Nothing is downloaded. The plan is left in ``.demo/`` for the ``hilore`` command.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hilore_planner import PlacementPlan
from hilore_planner.bench.setting import Setting
from hilore_planner.bench.trial import Trial, try_update
from hilore_planner.errors import InfeasibleError
from hilore_planner.grpo.actor import MODELS, actor_loss, build_qwen2, random_batch
from hilore_planner.render.diff import diff
from hilore_planner.render.show import show
from hilore_planner.render.table import Column, Line, table
from hilore_planner.sizes import format_bytes, format_ns

FOLDER = Path(".demo")
MIB = 2**20
NOISY = 0.3
console = Console(highlight=False, soft_wrap=True)


SMALL = Setting("on a CPU", "small", sequences=4, prompt=64, response=192, dtype="float32")
LARGE = Setting("on a GPU", "qwen2.5-0.5b", sequences=4, prompt=256, response=768)


def run_three_ways(setting: Setting, device: str, plan_file: Path) -> dict[str, Trial]:
    """The point of this file: the same loss, only compiled in another way."""
    dtype: torch.dtype = getattr(torch, setting.dtype)
    model = build_qwen2(dtype=dtype, device=device, **MODELS[setting.model])
    batch = random_batch(
        sequences=setting.sequences,
        prompt=setting.prompt,
        response=setting.response,
        vocab_size=model.config.vocab_size,
        device=device,
    )
    loss = actor_loss(model, prompt=setting.prompt)

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with step("Eager, with gradient checkpointing: everything is recomputed"):
        checkpointed = try_update(loss, batch, model)
    model.gradient_checkpointing_disable()

    fresh_start()
    with step("Compiled by torch: saves what it likes"):
        unplanned = try_update(torch.compile(loss), batch, model)

    fresh_start()
    cap_bytes = (checkpointed.peak_bytes + unplanned.peak_bytes) // 2
    options: dict[str, Any] = {"memory_cap": cap_bytes, "plan": str(plan_file)}
    with step(
        f"Compiled by hilore, memory_cap {format_bytes(cap_bytes)}: half-way between the two"
    ):
        planned = try_update(torch.compile(loss, backend="hilore", options=options), batch, model)
    return {"checkpointing": checkpointed, "unplanned": unplanned, "hilore": planned}


def solve_for(plan: PlacementPlan, cap_bytes: int) -> PlacementPlan:
    """The plan for another cap, or for the smallest there is, if that cap is too small."""
    try:
        return plan.solve(memory_cap=cap_bytes)
    except InfeasibleError as error:
        console.print(f"  {error}\n")
        return plan.solve(memory_cap=error.smallest_feasible_cap_bytes)


def fresh_start() -> None:
    """Forget what was compiled, and give its memory back."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def step(title: str) -> Iterator[None]:
    """Show that something is going on, and for how long."""
    start = time.monotonic()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    if console.is_terminal:
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(title, total=None)
            yield
    else:
        console.print(f"{title} ...")
        yield
    console.print(f"{title}: done in [dim]{time.monotonic() - start:.0f} s[/]")


def heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/]\n")


def print_trials(trials: dict[str, Trial], plan: PlacementPlan) -> None:
    titles = ("time", "peak", "predicted peak", "saved", "gradient differs")
    columns = (Column("update"), *(Column(title, right=True) for title in titles))
    unplanned, checkpointed = trials["unplanned"], trials["checkpointing"]
    lines = [
        Line(
            (
                name,
                format_ns(round(1e6 * trial.time_ms)),
                format_bytes(trial.peak_bytes),
                format_bytes(plan.predicted_peak_bytes) if name == "hilore" else "-",
                format_bytes(trial.saved_bytes),
                "-" if trial is unplanned else f"{trial.gradient_difference(unplanned):.0e}",
            ),
            "bold" if name == "hilore" else "",
        )
        for name, trial in trials.items()
    ]
    for text in table(columns, lines, console.width):
        console.print(text)
    planned = trials["hilore"]
    spread = max(trial.time_spread for trial in trials.values())
    if spread > NOISY:
        console.print(
            f"\n  [yellow]The same update took up to {spread:.0%} longer or shorter from run to run: something"
            " else keeps this machine busy, so do not trust the times.[/]"
        )
    console.print(
        "\n  peak: weights, batch and gradients included; saved: kept from forward to backward"
        "\n  gradient differs: from the unplanned update's, relative; rounding, as nothing is compressed"
        f"\n\n  hilore takes {planned.time_ms / checkpointed.time_ms:.0%} of checkpointing's time"
        f" (the unplanned update, {unplanned.time_ms / checkpointed.time_ms:.0%})"
        f"\n  and {planned.peak_bytes / unplanned.peak_bytes:.0%} of the unplanned update's memory"
        f" (checkpointing, {checkpointed.peak_bytes / unplanned.peak_bytes:.0%})."
    )


NEXT = """\
  .venv/bin/hilore explain {plan}    [dim]who holds the peak, and what would lower it[/]
  .venv/bin/hilore sweep {plan} --caps {low}MiB:{high}MiB:{step}MiB    [dim]what each cap costs[/]
  .venv/bin/hilore solve {plan} --memory-cap {low}MiB -o new.json    [dim]another plan, used by[/]
  torch.compile(loss, backend="hilore", options={{"memory_cap": "{high}MiB", "plan": "new.json"}})"""


def main() -> None:
    device, setting = ("cuda", LARGE) if torch.cuda.is_available() else ("cpu", SMALL)
    FOLDER.mkdir(exist_ok=True)
    roomy, tight = FOLDER / "update.json", FOLDER / "tight.json"
    roomy.unlink(missing_ok=True)

    lengths = f"{setting.prompt} + {setting.response} tokens"
    heading(f"1. A GRPO actor update {setting.name}: {setting.sequences} sequences of {lengths}")
    trials = run_three_ways(setting, device, roomy)
    plan = PlacementPlan.load(roomy)
    console.print()
    print_trials(trials, plan)

    heading(f"2. The plan, written to {roomy}")
    for text in show(plan, console.width):
        console.print(text)

    heading(
        "3. Solved again for a third of what it saved less, with no model and no GPU: what changes"
    )
    tighter = solve_for(plan, plan.predicted_peak_bytes - plan.solution.saved_bytes // 3)
    tighter.save(tight)
    for text in diff(plan.diff(tighter), console.width):
        console.print(text)

    heading("Next")
    low, high = (p.problem.memory_cap_bytes // MIB + 1 for p in (tighter, plan))
    console.print(NEXT.format(plan=roomy, low=low, high=high, step=max((high - low) // 8, 1)))


if __name__ == "__main__":
    main()
