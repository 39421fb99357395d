"""The same small updates, real and fake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hilore_planner.grpo.actor import MODELS, actor_loss, build_qwen2, random_batch
from hilore_planner.passes import compat

PROMPT, RESPONSE, SEQUENCES = 32, 96, 4


@dataclass(frozen=True, slots=True)
class Actor:
    """A GRPO update of a toy of two layers."""

    loss: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    model: Any


def actor(
    *, fake: bool, dtype: torch.dtype = torch.float32, device: str = "cpu", **shape: Any
) -> Actor:
    with compat.new_fake_mode() if fake else nullcontext():
        model = build_qwen2(dtype=dtype, device=device, **(MODELS["tiny"] | shape))
        batch = random_batch(
            sequences=SEQUENCES,
            prompt=PROMPT,
            response=RESPONSE,
            vocab_size=model.config.vocab_size,
            device=device,
        )
    return Actor(actor_loss(model, prompt=PROMPT), tuple(batch), model)
