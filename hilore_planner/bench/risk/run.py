"""Train, calibrate, plan, and measure the plans in processes side by side."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hilore_planner.bench.calibrate import found
from hilore_planner.bench.risk.allocate import STORE
from hilore_planner.bench.risk.plans import (
    CODECS,
    Candidates,
    codecs_for,
    factors,
    papers_errors,
    papers_units,
)
from hilore_planner.bench.risk.processes import Processes
from hilore_planner.bench.risk.setting import RiskSetting
from hilore_planner.bench.risk.task import exposure_of, new_model, train
from hilore_planner.bench.risk.worker import PROFILE, WEIGHTS, WINNER_PROFILE, Subject
from hilore_planner.bench.runner import Row
from hilore_planner.calibration.calibrate import calibrate
from hilore_planner.profiling import wait
from hilore_planner.solvers.problem import compress_action

BUDGET = 0.015
"""What the paper accepted."""
_OF_CODECS = {"bytes of bf16": "bf16", "bytes of int8": "int8"}
_FOR_BUDGET = f"bytes for {BUDGET:g}"
"""Those that plain codecs need for a typical error of the budget."""
LEVELS = (*_OF_CODECS, _FOR_BUDGET)
"""Bytes that are spread among units, and among their sequences."""
_HELD_OUT = 10_000
"""First seed of microbatches that no calibration saw."""
_FEW = 8
"""Held-out microbatches that the paper's rule is measured on, op by op."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one process measures.

    Attributes:
        row: as far as it is known.
        message: asks for the rest.
        candidates: know what is predicted of its plan.
    """

    row: Row
    message: dict[str, Any]
    candidates: Candidates


def bench_risk(setting: RiskSetting, *, device: str, side_by_side: int) -> Iterator[Row]:
    """Rows of calibrations, plans, held-out microbatches, tiers and the paper's rule, each as soon as it is there."""
    same: Row = {"setting": setting.name, "seed": setting.seed}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subject, trained = _trained(setting, torch.device(device), folder)
        yield same | _calibrated(subject, folder / PROFILE, one_winner=False) | trained
        usual = Candidates.of(subject, folder)
        common = {"folder": name, "setting": setting.name, "device": device}
        processes = Processes("hilore_planner.bench.risk.worker", _environment(side_by_side))
        run = partial(_measured, common=common, processes=processes)
        with contextlib.closing(processes), ThreadPoolExecutor(side_by_side) as pool:
            running = [pool.submit(run, job) for job in (*_solved(usual), *_spread(usual))]
            # Meanwhile, as compiling leaves the device idle.
            yield same | _calibrated(subject, folder / WINNER_PROFILE, one_winner=True) | trained
            winner = Candidates.of(subject, folder, one_winner=True)
            running += [pool.submit(run, job) for job in _tiers(winner)]
            yield same | _papers_rule(winner)
            for done in as_completed(running):
                yield same | done.result()


def _environment(side_by_side: int) -> dict[str, str]:
    """Of a worker: its part of the processors."""
    share = str(max(1, (os.cpu_count() or 1) // side_by_side))
    return os.environ | {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share}


def _trained(setting: RiskSetting, device: torch.device, folder: Path) -> tuple[Subject, Row]:
    """A trained model, whose weights are left in ``folder`` too."""
    model = new_model(setting, device)
    start = time.perf_counter()
    loss = train(model, setting, device)
    row: Row = {"train_seconds": round(time.perf_counter() - start, 1), "train_loss": loss}
    _say("training", row)
    torch.save(model.state_dict(), folder / WEIGHTS)
    return Subject.of(model, setting, device), row


def _calibrated(subject: Subject, path: Path, *, one_winner: bool) -> Row:
    """Calibrate on usual microbatches, or on those with one winner in each group and with tiers."""
    setting = subject.setting
    wait(subject.device)
    start = time.perf_counter()
    profile = calibrate(
        subject.update,
        (subject.batch(seed, one_winner=one_winner) for seed in setting.seeds),
        exposure=lambda batch: exposure_of(*batch),
        options={"codecs": list(codecs_for(subject, one_winner=one_winner)), "head": "off"},
        depth_buckets=setting.shape["num_hidden_layers"],
        perturbed_batches=setting.perturbed_batches,
    )
    profile.save(path)
    row: Row = {
        "variant": f"calibration{' for one winner' if one_winner else ''}",
        "calibration_seconds": round(time.perf_counter() - start, 1),
        **found(profile),
    }
    if one_winner:
        row["tiers_factors"] = factors(profile.shares)
    _say(row["variant"], row)
    return row


def _solved(usual: Candidates) -> Iterator[Job]:
    """The paper's budget on many microbatches, with a table of plans and with one; then a plan for each error.

    The longest first.
    """
    path = usual.folder / "tight.json"
    tight = usual.tight()
    tight.save(path)
    setting = usual.subject.setting
    cap: Row = {"cap_bytes": tight.problem.memory_cap_bytes}

    def solved(variant: str, budget: float, kind: str = "plan") -> Job:
        message = {"kind": kind, "solve": str(path), "plan": str(usual.folder / variant)}
        message |= {"gradient_error": budget} | _measuring(usual)
        return Job({"variant": variant, "gradient_error": budget} | cap, message, usual)

    yield solved("policy update", BUDGET, "policy")
    yield solved("held out", BUDGET)
    # A plan keeps its budget on nearly every batch: on a typical one it is below, by the margin.
    margin = usual.profile.margin**0.5
    for error in setting.solved_errors:
        yield solved(f"solved for {error:g}", error * margin)


def _spread(usual: Candidates) -> Iterator[Job]:
    """Plans that store or compress, and recompute nothing."""
    names = usual.offered("int8")
    for error in usual.subject.setting.spread_errors:
        compressed = usual.spread(names, (*CODECS, STORE), error)
        yield _given(usual, f"no recomputation, {error:g}", compressed)


def _given(candidates: Candidates, variant: str, compressed: dict[str, str]) -> Job:
    path = candidates.folder / variant
    plan = candidates.given(compressed)
    plan.save(path)
    message = {"kind": "plan", "plan": str(path), "gradient_error": plan.problem.gradient_error}
    row = {"variant": variant, "gradient_error": None}
    return Job(row, message | _measuring(candidates), candidates)


def _tiers(winner: Candidates) -> Iterator[Job]:
    """Equal memory on batches with one winner in each group: codecs spread blindly, and by exposure.

    Those by exposure come first: they take longest to compile.
    """
    tiers = [codec for codec in winner.codecs if "[" in codec]
    names, blind = winner.offered(tiers[0]), (*CODECS, STORE)
    levels = {
        level: dict.fromkeys(names, compress_action(codec)) for level, codec in _OF_CODECS.items()
    }
    levels[_FOR_BUDGET] = winner.spread(names, blind, BUDGET)
    for variant, codecs in (("by exposure", (*blind, *tiers)), ("blind", blind)):
        for memory, placement in levels.items():
            compressed = winner.split(names, codecs, winner.bytes_of(placement))
            yield _given(winner, f"{memory}, {variant}", compressed)
    stored = winner.bytes_of(dict.fromkeys(names, STORE))
    cast = winner.bytes_of(dict.fromkeys(papers_units(names), STORE))
    papers_bytes = stored - cast + cast // winner.subject.model.dtype.itemsize
    compressed = winner.split(names, (*blind, *tiers), papers_bytes)
    yield _given(winner, "bytes of the paper's rule, by exposure", compressed)


def _measuring(candidates: Candidates) -> dict[str, Any]:
    held_out = candidates.subject.setting.held_out
    return {
        "profile": str(candidates.profile_path),
        "codecs": list(candidates.codecs),
        "seeds": list(range(_HELD_OUT, _HELD_OUT + held_out)),
        "one_winner": candidates.one_winner,
    }


def _papers_rule(winner: Candidates) -> Row:
    seeds = range(_HELD_OUT, _HELD_OUT + _FEW)
    errors = papers_errors(winner.subject, seeds, one_winner=True)
    row: Row = {
        "variant": "the paper's rule, op by op",
        "measured_gradient_error": _over_batches(errors),
        "measured_gradient_errors": errors,
    }
    _say(row["variant"], row)
    return row


def _measured(job: Job, common: dict[str, Any], processes: Processes) -> Row:
    """Have a job done; one that fails gives a row with ``error``."""
    start = time.perf_counter()
    answer = processes.answer(job.message | common)
    row = job.row | answer | {"seconds": round(time.perf_counter() - start, 1)}
    if "gradient_norms" in row:
        row["measured_gradient_error"] = _over_batches(row["measured_gradient_errors"])
        path = Path(job.message["plan"])
        row["predicted_gradient_error"] = job.candidates.predicted(path)
    _say(row["variant"], row)
    return row


def _over_batches(errors: Sequence[float]) -> float:
    """Root mean square of relative errors: what is predicted is the square of one batch's, on average."""
    return math.sqrt(statistics.fmean(error**2 for error in errors))


def _say(what: str, row: Row) -> None:
    figures = (
        "error",
        "train_loss",
        "train_seconds",
        "calibration_seconds",
        "predicted_gradient_error",
        "measured_gradient_error",
        "seconds",
    )
    known = ", ".join(f"{name} {row[name]}" for name in figures if row.get(name) is not None)
    print(f"{what}: {known}", file=sys.stderr, flush=True)
