"""The same small updates, real and fake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hilore_planner import backend
from hilore_planner.errors import HiloreError
from hilore_planner.grpo.actor import MODELS, actor_loss, build_qwen2, random_batch
from hilore_planner.passes import compat
from hilore_planner.plan import PlacementPlan
from hilore_planner.planning import plan_region

PROMPT, RESPONSE, SEQUENCES = 32, 96, 4


@dataclass(frozen=True, slots=True)
class Actor:
    """A GRPO update of a toy of two layers."""

    loss: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    model: Any


def actor(
    *,
    fake: bool,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    response: int = RESPONSE,
) -> Actor:
    with compat.new_fake_mode() if fake else nullcontext():
        model = build_qwen2(dtype=dtype, device=device, **MODELS["tiny"])
        batch = random_batch(
            sequences=SEQUENCES,
            prompt=PROMPT,
            response=response,
            vocab_size=model.config.vocab_size,
            device=device,
        )
    return Actor(actor_loss(model, prompt=PROMPT), tuple(batch), model)


class _EnoughError(HiloreError):
    """Stops the backend once it has planned."""


def plan_of_backend(
    update: Actor, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> PlacementPlan:
    """The first plan the backend makes: of the whole update, before compiled code corrects it."""
    found: list[PlacementPlan] = []

    def watched(*args: Any, **keywords: Any) -> Any:
        found.append(plan_region(*args, **keywords).plan)
        raise _EnoughError

    monkeypatch.setattr(backend, "plan_region", watched)
    torch._dynamo.reset()
    compiled = torch.compile(update.loss, backend="hilore", dynamic=False, options=options)
    with pytest.raises(_EnoughError):
        compiled(*update.inputs)
    (plan,) = found
    return plan
