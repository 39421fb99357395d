"""A GRPO actor update on a transformers causal language model, as one function to compile.

Shapes: B sequences of P prompt and T response tokens; D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.dead_rows import drop_dead, select
from hilore_planner.grpo.models import SHAPES
from hilore_planner.grpo.trl import TRLLoss

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 1024,
    },
    "small": {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 4096,
    },
} | {name: shape.config_fields() for name, shape in SHAPES.items() if shape.family == "qwen2"}
"""Shapes of Qwen2 models: two small ones, and the public ones. Weights are random."""

DAPO = TRLLoss()
"""TRL's default: DAPO's token mean, clipped, without a KL term."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One microbatch.

    Attributes:
        ids: (B, P + T) int64.
        old_log_probs: (B, T) fp32.
        advantages: (B,) fp32.
        mask: (B, T) fp32, 1 for response tokens that count.
        weights: (B, T) of a larger batch that this is a part of; None: this is all.
    """

    ids: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    weights: Tensor | None = None

    def __iter__(self) -> Any:
        given = (self.ids, self.old_log_probs, self.advantages, self.mask, self.weights)
        return (tensor for tensor in given if tensor is not None)

    def without_dead(self, objective: PolicyLoss = DAPO) -> Batch:
        """The same update without the sequences that have no gradient; the rest keep their weights.

        Raises:
            OptionError: the objective gives sequences of zero advantage a gradient.
        """
        numbers = LossBatch(
            advantages=self.advantages, mask=self.mask, old_log_probs=self.old_log_probs
        )
        live = drop_dead(objective, numbers)
        width = self.mask.shape[1]
        rows = select(
            replace(numbers, weights=objective.weights(numbers).expand_as(self.mask)),
            live.kept,
            width,
        )
        assert rows.old_log_probs is not None
        return Batch(
            self.ids[live.kept], rows.old_log_probs, rows.advantages, rows.mask, rows.weights
        )


def build_qwen2(
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cpu",
    seed: int = 0,
    vocab_size: int = 151936,
    **shape: Any,
) -> Any:
    """A Qwen2 causal language model with random weights; ``shape`` as in :data:`MODELS`."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocab_size, max_position_embeddings=32768, use_cache=False, **shape
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    with torch.device(device):
        model = Qwen2ForCausalLM._from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    return model.train()


def add_adapters(model: Any, rank: int) -> None:
    """Put LoRA adapters of peft on every linear layer of the model's blocks, in place; only they are trained."""
    from peft import LoraConfig, get_peft_model

    get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def random_batch(
    *,
    sequences: int,
    prompt: int,
    response: int,
    vocab_size: int,
    device: str | torch.device = "cpu",
    seed: int = 1,
) -> Batch:
    """Random tokens and advantages, full responses."""
    generator = torch.Generator(device=device).manual_seed(seed)
    ids = torch.randint(
        0, vocab_size, (sequences, prompt + response), device=device, generator=generator
    )
    advantages = torch.randn(sequences, device=device, generator=generator)
    shape = (sequences, response)
    old = torch.full(shape, -torch.tensor(float(vocab_size)).log().item(), device=device)
    return Batch(ids, old, advantages, torch.ones(shape, device=device))


CAUSAL: dict[str, None] = {"full_attention": None}
"""An attention mask that says "none needed": under compilation transformers would otherwise build an explicit
four-dimensional one, and attention with it is several times slower. Models with one kind of attention refuse it."""


def actor_loss(
    model: Any,
    *,
    prompt: int,
    objective: PolicyLoss = DAPO,
    attention_mask: Mapping[str, Tensor | None] | None = CAUSAL,
) -> Callable[..., Tensor]:
    """The function to compile: batch tensors in, scalar loss out."""

    def loss(
        ids: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        hidden = model.base_model(
            input_ids=ids[:, :-1], attention_mask=attention_mask, use_cache=False
        ).last_hidden_state[:, prompt - 1 :]
        logits = (hidden @ model.lm_head.weight.t()).float()
        chosen = logits.gather(-1, ids[:, prompt:, None])[..., 0]
        log_probs = chosen - logits.logsumexp(-1)
        numbers = LossBatch(
            advantages=advantages, mask=mask, old_log_probs=old_log_probs, weights=weights
        )
        return objective.loss(log_probs, numbers)

    return loss
