"""``hilore bench calibrate``: what calibrating an update costs."""

from __future__ import annotations

import time

import torch

from hilore_planner.bench.models import batch_of, model_of
from hilore_planner.bench.risk.task import exposure_of
from hilore_planner.bench.runner import Row
from hilore_planner.bench.setting import Setting
from hilore_planner.calibration.calibrate import calibrate
from hilore_planner.calibration.profile import RiskProfile
from hilore_planner.grpo.actor import actor_loss
from hilore_planner.profiling import wait


def found(profile: RiskProfile) -> Row:
    """What a row says of the profile that a calibration found."""
    return {
        "classes": len(profile.kept) + len(profile.rebuilt),
        "erratic": sum(bool(one.erratic) for one in (*profile.kept, *profile.rebuilt)),
        "additivity": profile.additivity,
        "margin": profile.margin,
        "trials": list(profile.trials),
    }


def bench_calibrate(setting: Setting, *, batches: int, device: str) -> Row:
    """Calibrate once, from the first trace to the profile; everything it does is counted."""
    model, target = model_of(setting, device), torch.device(device)
    if target.type == "cuda":
        torch.cuda.reset_peak_memory_stats(target)
    wait(target)
    start = time.perf_counter()
    profile = calibrate(
        actor_loss(model, prompt=setting.prompt),
        (tuple(batch_of(setting, model, seed=seed)) for seed in range(batches)),
        exposure=lambda batch: exposure_of(*batch),
    )
    wait(target)
    return {
        "setting": setting.name,
        "seed": setting.seed,
        "seconds": round(time.perf_counter() - start, 1),
        "batches": batches,
        "tokens": setting.tokens,
        **found(profile),
        "margin": round(profile.margin, 3),
        "measured_peak_bytes": (
            torch.cuda.max_memory_allocated(target) if target.type == "cuda" else None
        ),
    }
