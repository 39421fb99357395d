"""Recorded references: what TRL, verl and OpenRLHF themselves yielded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.masks import importance_weights
from hilore_planner.grpo.openrlhf import OpenRLHFLoss
from hilore_planner.grpo.trl import TRLLoss
from hilore_planner.grpo.verl import VerlLoss

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "grpo"
LOSSES: dict[str, type[TRLLoss | VerlLoss | OpenRLHFLoss]] = {
    "trl": TRLLoss,
    "verl": VerlLoss,
    "openrlhf": OpenRLHFLoss,
}


@dataclass(frozen=True)
class Reference:
    """One configuration on one batch in one dtype, and what its framework made of it."""

    loss: PolicyLoss
    batch: LossBatch
    log_probs: Tensor
    seed: int
    value: float
    gradient: Tensor
    entropy_gradient: Tensor | None


@cache
def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def names(framework: str) -> list[str]:
    rows = load(framework)["rows"]
    return [f"{i}-{row['batch']}-{row['dtype']}-{row['options']}" for i, row in enumerate(rows)]


def reference(framework: str, index: int) -> Reference:
    content = load(framework)
    row = content["rows"][index]
    dtype = getattr(torch, row["dtype"])
    values = {k: torch.tensor(v, dtype=dtype) for k, v in content["batches"][row["batch"]].items()}
    inputs = row["inputs"]
    batch = LossBatch(
        advantages=values["advantages"],
        mask=values["mask"],
        old_log_probs=None if inputs.get("no_old") else values["old_log_probs"],
        ref_log_probs=values["ref_log_probs"],
        sampling_log_probs=values["sampling_log_probs"]
        if keeps_sampling(framework, inputs)
        else None,
        is_weights=weights(inputs, values),
        entropies=values["entropies"],
        num_tokens=inputs.get("num_tokens"),
        num_sequences=inputs.get("num_sequences"),
    )
    entropy = row.get("entropy_gradient")
    return Reference(
        loss=LOSSES[framework](**row["options"]),
        batch=batch,
        log_probs=values["log_probs"],
        seed=row["seed"],
        value=row["loss"],
        gradient=torch.tensor(row["gradient"], dtype=dtype),
        entropy_gradient=None if entropy is None else torch.tensor(entropy, dtype=dtype),
    )


def keeps_sampling(framework: str, inputs: dict[str, Any]) -> bool:
    return framework == "openrlhf" or bool(inputs.get("sampling"))


def weights(inputs: dict[str, Any], values: dict[str, Tensor]) -> Tensor | None:
    if inputs.get("weighted"):
        return values["is_weights"]
    if "is_mode" not in inputs:
        return None
    names = ("advantages", "mask", "old_log_probs", "sampling_log_probs")
    batch = LossBatch(**{name: values[name] for name in names})
    return importance_weights(
        batch, mode=inputs["is_mode"], low=inputs["is_low"], high=inputs["is_high"]
    )
