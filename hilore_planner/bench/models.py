"""The model and the batches of a setting."""

from __future__ import annotations

from typing import Any

import torch

from hilore_planner.bench.setting import Setting
from hilore_planner.grpo.actor import MODELS, Batch, build_qwen2, random_batch


def model_of(setting: Setting, device: str | torch.device) -> Any:
    """Its model with random weights, all of them trained."""
    shape = dict(MODELS[setting.model])
    if setting.layers is not None:
        shape["num_hidden_layers"] = setting.layers
    dtype: torch.dtype = getattr(torch, setting.dtype)
    return build_qwen2(dtype=dtype, device=device, seed=setting.seed, **shape)


def batch_of(setting: Setting, model: Any, *, seed: int) -> Batch:
    """A batch of random tokens for its model, where that is."""
    return random_batch(
        sequences=setting.sequences,
        prompt=setting.prompt,
        response=setting.response,
        vocab_size=model.config.vocab_size,
        device=model.device,
        seed=seed,
    )
