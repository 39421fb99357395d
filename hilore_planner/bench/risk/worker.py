"""One job of the risk benchmark, in a process of its own: compile plans, and measure their gradients on microbatches.

The exact gradient is eager autograd's: in fp32 it differs from a compiled one by rounding, far below any plan's error.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hilore_planner.bench.risk.setting import RISK_SETTINGS, RiskSetting
from hilore_planner.bench.risk.task import exposure_of, microbatch, new_model
from hilore_planner.grpo.actor import actor_loss
from hilore_planner.plan import PlacementPlan
from hilore_planner.policy_update import PolicyUpdate
from hilore_planner.verification import Outcome, PlannedUpdate, compare, outcome_of

WEIGHTS, PROFILE, WINNER_PROFILE = "weights.pt", "profile.json", "one-winner.json"


@dataclass(frozen=True, slots=True)
class Subject:
    """The trained model and the update that is planned."""

    model: Any
    update: Any
    setting: RiskSetting
    device: torch.device

    @classmethod
    def load(cls, folder: Path, setting: RiskSetting, device: torch.device) -> Subject:
        """With the weights that were saved in ``folder``."""
        model = new_model(setting, device)
        model.load_state_dict(torch.load(folder / WEIGHTS, map_location=device, weights_only=True))
        return cls(model, actor_loss(model, prompt=setting.prompt), setting, device)

    def batch(self, seed: int, *, one_winner: bool = False) -> tuple[torch.Tensor, ...]:
        """The arguments of one update."""
        return tuple(microbatch(self.model, self.setting, seed, self.device, one_winner=one_winner))


def measure_plan(subject: Subject, job: dict[str, Any]) -> dict[str, Any]:
    """Relative gradient errors under one given plan."""
    plan = PlacementPlan.load(job["plan"])
    planned = PlannedUpdate(
        subject.update,
        {
            "plan": job["plan"],
            "gradient_error": plan.problem.gradient_error,
            "exposure": job["profile"],
            "codecs": job["codecs"],
            "head": "off",
        },
    )
    errors, norms = [], []
    for seed in job["seeds"]:
        batch = subject.batch(seed, one_winner=job["one_winner"])
        found = planned.run(batch)
        exact = planned.outcome(subject.update(*batch))
        errors.append(compare(found.gradients, exact.gradients)[0].relative_error)
        norms.append(_squared_norm(exact))
    return {"measured_gradient_errors": errors, "squared_gradient_norms": norms}


def _squared_norm(outcome: Outcome) -> float:
    return sum(float(gradient.double().square().sum()) for gradient in outcome.gradients.values())


def measure_policy(subject: Subject, job: dict[str, Any]) -> dict[str, Any]:
    """Relative gradient errors of microbatches for which ``PolicyUpdate`` chooses, and what choosing takes."""
    batches = [subject.batch(seed) for seed in job["seeds"]]
    known = {id(batch[0]): exposure_of(*batch) for batch in batches}
    policy = PolicyUpdate(
        subject.update,
        gradient_error=job["gradient_error"],
        exposure_of=lambda ids, *_: known[id(ids)],
        options={
            "exposure": job["profile"],
            "codecs": job["codecs"],
            "head": "off",
        },
        folder=job["plans"],
    )
    policy.prepare(*batches[0])
    parameters = dict(subject.model.named_parameters())
    errors, predicted = [], []
    for batch in batches:
        found = outcome_of(policy(*batch), parameters)
        exact = outcome_of(subject.update(*batch), parameters)
        errors.append(compare(found.gradients, exact.gradients)[0].relative_error)
        assert policy.last is not None
        predicted.append(policy.last.predicted_gradient_error)
    start = time.perf_counter()
    for _ in range(10):
        for batch in batches:
            policy.choose(*batch)
    choosing = (time.perf_counter() - start) / (10 * len(batches))
    return {
        "measured_gradient_errors": errors,
        "predicted_gradient_errors": predicted,
        "choosing_ms": 1e3 * choosing,
        "metrics": policy.metrics(),
    }


def main() -> None:
    """Read one job from standard input, answer on standard output."""
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    row: dict[str, Any] = {}
    try:
        subject = Subject.load(
            Path(job["folder"]), RISK_SETTINGS[job["setting"]], torch.device(job["device"])
        )
        measure = measure_policy if job["kind"] == "policy" else measure_plan
        row = measure(subject, job)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:1500]
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
