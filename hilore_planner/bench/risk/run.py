"""Train, calibrate, plan, and measure every plan in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hilore_planner.bench.risk.plans import (
    CODECS,
    Candidate,
    Candidates,
    codecs_for,
    papers_errors,
    papers_units,
)
from hilore_planner.bench.risk.setting import RiskSetting
from hilore_planner.bench.risk.task import exposure_of, new_model, train
from hilore_planner.bench.risk.worker import PROFILE, WEIGHTS, WINNER_PROFILE, Subject
from hilore_planner.bench.runner import Row
from hilore_planner.bench.trial import wait
from hilore_planner.calibration.calibrate import calibrate
from hilore_planner.policy_update import budgets, plan_path

BUDGET = 0.015
"""What the paper accepted."""
_HELD_OUT = 10_000
"""First seed of microbatches that no calibration saw."""
_FEW = 8
"""Held-out microbatches that each plan is measured on."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one process measures: the row as far as it is known, and the message that asks for the rest."""

    row: Row
    message: dict[str, Any]


def bench_risk(setting: RiskSetting, *, device: str, side_by_side: int) -> list[Row]:
    """Rows of training and calibration, of every plan, of held-out microbatches, of tiers and the paper's rule."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = _prepare(setting, torch.device(device), folder)
        subject = Subject.load(folder, setting, torch.device(device))
        usual = Candidates.of(subject, folder)
        winner = Candidates.of(subject, folder, one_winner=True)
        cap = usual.cap_bytes()
        # The longest first.
        jobs = [*_held_out(usual, cap), *_ladder(usual, cap), *_tiers(winner)]
        rows.append(_papers_rule(winner))
        threads = max(1, torch.get_num_threads() // side_by_side)
        common = {"folder": name, "setting": setting.name, "device": device, "threads": threads}
        with ThreadPoolExecutor(side_by_side) as pool:
            rows += pool.map(lambda job: _measured(job, common), jobs)
    return [{"setting": setting.name, "seed": setting.seed} | row for row in rows]


def _prepare(setting: RiskSetting, device: torch.device, folder: Path) -> list[Row]:
    """Train and calibrate; weights and profile are left in ``folder``."""
    model = new_model(setting, device)
    start = time.perf_counter()
    loss = train(model, setting, device)
    torch.save(model.state_dict(), folder / WEIGHTS)
    trained_seconds = time.perf_counter() - start
    del model
    subject = Subject.load(folder, setting, device)
    rows = [_calibrated(subject, folder / PROFILE, one_winner=False)]
    rows.append(_calibrated(subject, folder / WINNER_PROFILE, one_winner=True))
    trained = {"train_seconds": round(trained_seconds, 1), "train_loss": loss}
    return [row | trained for row in rows]


def _calibrated(subject: Subject, path: Path, *, one_winner: bool) -> Row:
    """Calibrate on usual microbatches, or on those with one winner in each group and with tiers."""
    setting = subject.setting
    seeds = range(1, setting.calibration_batches + 1)
    wait(subject.device)
    start = time.perf_counter()
    profile = calibrate(
        subject.update,
        (subject.batch(seed, one_winner=one_winner) for seed in seeds),
        exposure=lambda batch: exposure_of(*batch),
        options={"codecs": list(codecs_for(setting, one_winner=one_winner)), "head": "off"},
        perturbed_batches=setting.perturbed_batches,
    )
    profile.save(path)
    row: Row = {
        "variant": f"calibration{' for one winner' if one_winner else ''}",
        "calibration_seconds": round(time.perf_counter() - start, 1),
        "classes": len(profile.kept) + len(profile.rebuilt),
        "additivity": profile.additivity,
        "margin": profile.margin,
        "trials": list(profile.trials),
    }
    _say(row["variant"], row)
    return row


def _ladder(usual: Candidates, cap_bytes: int) -> Iterator[Job]:
    """A plan for each budget, each measured on a few held-out microbatches."""
    for budget in usual.subject.setting.budgets:
        yield _job(
            usual.at(budget, cap_bytes), range(_HELD_OUT, _HELD_OUT + _FEW), gradient_error=budget
        )


def _held_out(usual: Candidates, cap_bytes: int) -> Iterator[Job]:
    """The paper's budget on many microbatches: with one plan, and with a table of plans."""
    seeds = range(_HELD_OUT, _HELD_OUT + usual.subject.setting.held_out)
    kept = usual.at(BUDGET, cap_bytes)
    held = _job(kept, seeds, gradient_error=BUDGET)
    yield Job(held.row | {"variant": "held out"}, held.message)
    folder = usual.folder / "table"
    folder.mkdir()
    for budget in budgets(BUDGET):
        usual.at(budget, cap_bytes).plan.save(plan_path(folder, budget))
    row = {"variant": "policy update", "gradient_error": BUDGET, "cap_bytes": cap_bytes}
    message = {
        "kind": "policy",
        "gradient_error": BUDGET,
        "plans": str(folder),
        "profile": str(usual.profile_path),
        "codecs": list(usual.codecs),
        "seeds": list(seeds),
    }
    yield Job(row, message)


def _tiers(winner: Candidates) -> Iterator[Job]:
    """Equal memory on batches with one winner in each group: codecs spread blindly, and by exposure."""
    seeds = range(_HELD_OUT, _HELD_OUT + _FEW)
    tiers = [codec for codec in winner.codecs if "[" in codec]
    names = winner.offered(tiers[0])
    budget = winner.bytes_of(names, tiers[0])
    papers = papers_units(names)
    whole = sum(u.kept_bytes for u in winner.roomy.problem.units if u.name in names)
    cast = sum(u.kept_bytes for u in winner.roomy.problem.units if u.name in papers)
    size = winner.subject.model.dtype.itemsize
    given = {
        "tiers, blind to exposure": (CODECS, budget),
        "tiers, by exposure": ((*CODECS, *tiers), budget),
        "as much memory as the paper's rule": (
            (*CODECS, *tiers, "store"),
            whole - cast + cast // size,
        ),
    }
    for variant, (codecs, budget_bytes) in given.items():
        candidate = winner.given(variant, winner.split(names, codecs, budget_bytes))
        yield _job(candidate, seeds, one_winner=True)


def _papers_rule(winner: Candidates) -> Row:
    seeds = range(_HELD_OUT, _HELD_OUT + _FEW)
    errors, norms = papers_errors(winner.subject, seeds, one_winner=True)
    return {
        "variant": "the paper's rule, op by op",
        "measured_gradient_error": _over_batches(errors, norms),
        "measured_gradient_errors": errors,
    }


def _job(
    candidate: Candidate,
    seeds: Sequence[int],
    *,
    gradient_error: float | None = None,
    one_winner: bool = False,
) -> Job:
    row = {
        "variant": candidate.variant,
        "gradient_error": gradient_error,
        "predicted_gradient_error": candidate.predicted,
        "cap_bytes": candidate.plan.problem.memory_cap_bytes,
        "saved_bytes": candidate.plan.solution.saved_bytes,
        "objective_ns": candidate.plan.solution.objective_ns,
        "status": candidate.plan.solution.status,
    }
    message = {
        "kind": "plan",
        "plan": str(candidate.path),
        "profile": str(candidate.profile),
        "codecs": list(candidate.codecs),
        "seeds": list(seeds),
        "one_winner": one_winner,
    }
    return Job(row, message)


def _measured(job: Job, common: dict[str, Any]) -> Row:
    """Run a job in a process of its own; a job that fails gives a row with ``error``."""
    worker = subprocess.run(
        [sys.executable, "-m", "hilore_planner.bench.risk.worker"],
        input=json.dumps(job.message | common) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = [line for line in worker.stdout.splitlines() if line.startswith("{")]
    answer = json.loads(lines[-1]) if lines else {"error": "the process ended without an answer"}
    row = job.row | answer
    if norms := row.pop("squared_gradient_norms", None):
        row["measured_gradient_error"] = _over_batches(row["measured_gradient_errors"], norms)
    _say(row["variant"], row)
    return row


def _over_batches(errors: Sequence[float], norms: Sequence[float]) -> float:
    """Norm of all batches' errors over the norm of all their gradients."""
    wrong = sum(error**2 * norm for error, norm in zip(errors, norms, strict=True))
    return float((wrong / sum(norms)) ** 0.5)


def _say(what: str, row: Row) -> None:
    figures = (
        "error",
        "predicted_gradient_error",
        "measured_gradient_error",
        "calibration_seconds",
    )
    known = ", ".join(f"{name} {row[name]}" for name in figures if row.get(name) is not None)
    print(f"{what}: {known}", file=sys.stderr, flush=True)


def summary(rows: Sequence[Row]) -> list[str]:
    """What the rows show, one line each."""
    by_variant = {row["variant"]: row for row in rows if "error" not in row}
    lines = []
    for row in rows:
        predicted, measured = (
            row.get("predicted_gradient_error"),
            row.get("measured_gradient_error"),
        )
        if predicted and measured:
            ratio = f"{measured:.5f} / {predicted:.5f} = {measured / predicted:.2f}"
            lines.append(f"{row['variant']}: measured / predicted {ratio}")
    for variant in ("held out", "policy update"):
        if variant in by_variant:
            errors = by_variant[variant]["measured_gradient_errors"]
            within = sum(error <= BUDGET for error in errors)
            lines.append(f"{variant}: {within} of {len(errors)} microbatches within {BUDGET}")
    return lines
