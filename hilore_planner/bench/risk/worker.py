"""Jobs of the risk benchmark, one after another: compile plans, and measure their gradients on microbatches.

The exact gradient is eager autograd's: in fp32 it differs from a compiled one by rounding, far below any plan's error.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hilore_planner.bench.risk.setting import RISK_SETTINGS, RiskSetting
from hilore_planner.bench.risk.task import exposure_of, microbatch, new_model
from hilore_planner.grpo.actor import actor_loss
from hilore_planner.plan import PlacementPlan
from hilore_planner.policy_update import PolicyUpdate, budgets, plan_path
from hilore_planner.verification import Outcome, PlannedUpdate, compare, outcome_of

_SOLVER_SECONDS = 5.0
"""What a plan risks is asked here, not that it is the fastest."""
PLANNED = {"head": "off", "costs": "roofline"}
"""Options of every plan: times do not matter here, and measuring them would take each process a minute."""
WEIGHTS, PROFILE = "weights.pt", "profile.json"
WINNER_PROFILE, TYPICAL_PROFILE = "one-winner.json", "typical-one-winner.json"


@dataclass(frozen=True, slots=True)
class Subject:
    """The trained model and the update that is planned."""

    model: Any
    update: Any
    setting: RiskSetting
    device: torch.device

    @classmethod
    def of(cls, model: Any, setting: RiskSetting, device: torch.device) -> Subject:
        """The update of a model."""
        return cls(model, actor_loss(model, prompt=setting.prompt), setting, device)

    @classmethod
    def load(cls, folder: Path, setting: RiskSetting, device: torch.device) -> Subject:
        """With the weights that were saved in ``folder``."""
        model = new_model(setting, device)
        model.load_state_dict(torch.load(folder / WEIGHTS, map_location=device, weights_only=True))
        return cls.of(model, setting, device)

    def batch(self, seed: int, *, one_winner: bool = False) -> tuple[torch.Tensor, ...]:
        """The arguments of one update."""
        return tuple(microbatch(self.model, self.setting, seed, self.device, one_winner=one_winner))


def measure_plan(subject: Subject, job: dict[str, Any]) -> dict[str, Any]:
    """Relative gradient errors under one plan: a given one, or one to be solved."""
    path = Path(job["plan"])
    if "solve" in job:
        _solve(job, job["gradient_error"], path)
    planned = PlannedUpdate(
        subject.update,
        {
            "plan": str(path),
            "gradient_error": job["gradient_error"],
            "exposure": job["profile"],
            "codecs": job["codecs"],
            **PLANNED,
        },
    )
    errors, norms = [], []
    for seed in job["seeds"]:
        batch = subject.batch(seed, one_winner=job["one_winner"])
        found = planned.run(batch)
        exact = planned.outcome(subject.update(*batch))
        errors.append(compare(found.gradients, exact.gradients)[0].relative_error)
        norms.append(_norm(exact))
    plan = PlacementPlan.load(path)
    return {
        "saved_bytes": plan.solution.saved_bytes,
        "objective_ns": plan.solution.objective_ns,
        "status": plan.solution.status,
        "gap": plan.solution.gap,
        "measured_gradient_errors": errors,
        "gradient_norms": norms,
    }


def _solve(job: dict[str, Any], budget: float, path: Path) -> None:
    """Solve the job's problem for an error budget."""
    start = PlacementPlan.load(job["solve"])
    start.solve(gradient_error=budget, solver_seconds=_SOLVER_SECONDS).save(path)


def _norm(outcome: Outcome) -> float:
    squares = (float(gradient.double().square().sum()) for gradient in outcome.gradients.values())
    return math.sqrt(sum(squares))


def measure_policy(subject: Subject, job: dict[str, Any]) -> dict[str, Any]:
    """Relative gradient errors of microbatches for which ``PolicyUpdate`` chooses, and what choosing takes."""
    batches = [subject.batch(seed) for seed in job["seeds"]]
    known = {id(batch[0]): exposure_of(*batch) for batch in batches}
    folder = Path(job["plan"])
    folder.mkdir()
    for budget in budgets(job["gradient_error"]):
        _solve(job, budget, plan_path(folder, budget))
    policy = PolicyUpdate(
        subject.update,
        gradient_error=job["gradient_error"],
        exposure_of=lambda ids, *_: known[id(ids)],
        options={
            "exposure": job["profile"],
            "codecs": job["codecs"],
            **PLANNED,
        },
        folder=folder,
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
    return {
        "measured_gradient_errors": errors,
        "predicted_gradient_errors": predicted,
        "choosing_ms": _choosing_ms(policy, batches),
        "metrics": policy.metrics(),
    }


def _choosing_ms(policy: PolicyUpdate, batches: Sequence[tuple[torch.Tensor, ...]]) -> float:
    """What a choice takes, exposure at hand."""
    rounds = 10
    start = time.perf_counter()
    for _ in range(rounds):
        for batch in batches:
            policy.choose(*batch)
    return 1e3 * (time.perf_counter() - start) / (rounds * len(batches))


def main() -> None:
    """Read a job a line from standard input, answer with a line on standard output."""
    for line in sys.stdin:
        job = json.loads(line)
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
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
