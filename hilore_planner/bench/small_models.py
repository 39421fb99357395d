"""Language models of two layers in six architectures, small enough for a CPU, and their updates.

They differ where memory does: grouped queries (Llama), biases and tied embeddings (Qwen2), norms of query and key
(Qwen3), soft caps and norms behind each block (Gemma2), projections in one matrix (Phi3), a sliding window (Mistral).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.actor import DAPO, Batch, random_batch
from hilore_planner.grpo.batch import LossBatch

SEQUENCES, PROMPT, RESPONSE, VOCABULARY = 2, 32, 96, 640

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 264,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "use_cache": False,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "gemma2": {"head_dim": 24},
    "phi3": {},
    "mistral": {"sliding_window": 64},
}
"""Names as transformers has them, with what their shape has beyond the others'."""

_EAGER = ("gemma2",)
"""Soft caps on attention's scores are not in torch's fused attention."""


@dataclass(frozen=True, slots=True)
class SmallUpdate:
    """An update to compile: ``loss(*batch)``, and the model whose gradients it makes."""

    name: str
    model: Any
    batch: Batch
    loss: Callable[..., Tensor]


def small_update(name: str, *, is_checkpointed: bool = False, seed: int = 0) -> SmallUpdate:
    """The GRPO update of a small model with random weights: two sequences of 128 tokens, in fp32.

    Args:
        name: one of :data:`ARCHITECTURES`.
        is_checkpointed: with transformers' gradient checkpointing.
        seed: of weights and tokens.

    Raises:
        OptionError: another name.
    """
    if name not in ARCHITECTURES:
        raise OptionError(
            f"unknown architecture {name!r}; accepted on the CPU: {', '.join(ARCHITECTURES)}"
        )
    model = _model(name, seed)
    if is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    batch = random_batch(
        sequences=SEQUENCES,
        prompt=PROMPT,
        response=RESPONSE,
        vocab_size=VOCABULARY,
        seed=seed + 1,
    )

    def loss(ids: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        logits = model(input_ids=ids[:, :-1]).logits[:, PROMPT - 1 :].float()
        chosen = logits.gather(-1, ids[:, PROMPT:, None])[..., 0]
        numbers = LossBatch(advantages=advantages, mask=mask, old_log_probs=old_log_probs)
        return DAPO.loss(chosen - logits.logsumexp(-1), numbers)

    return SmallUpdate(name, model, batch, loss)


def _model(name: str, seed: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **_SHAPE | ARCHITECTURES[name])
    config._attn_implementation = "eager" if name in _EAGER else "sdpa"
    torch.manual_seed(seed)
    factory: Any = AutoModelForCausalLM
    model = factory.from_config(config)
    for module in model.modules():
        if hasattr(module, "original_inv_freq"):  # a copy that no update reads
            module.original_inv_freq = module.inv_freq
    return model.train()
