"""Language models of two layers, built from transformers' configurations, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.guarantees.regions import Region, capture

VOCABULARY = 640

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "use_cache": False,
}
_LLAMA_LIKE = _COMMON | {"intermediate_size": 264, "num_key_value_heads": 2}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_LLAMA_LIKE),
    "qwen2": lambda: transformers.Qwen2Config(**_LLAMA_LIKE, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**_LLAMA_LIKE, head_dim=32),
    "gemma2": lambda: transformers.Gemma2Config(**_LLAMA_LIKE, head_dim=24),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=96, n_layer=2, n_head=4, n_positions=256, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "mistral": lambda: transformers.MistralConfig(**_LLAMA_LIKE, sliding_window=64),
}  # fmt: skip


def region_of(name: str) -> Region:
    """The update of an architecture: a policy-gradient loss of two sequences of 128 tokens."""
    torch.manual_seed(0)
    config = ARCHITECTURES[name]()
    config._attn_implementation = "eager" if name == "gemma2" else "sdpa"
    model: Any = transformers.AutoModelForCausalLM
    model = model.from_config(config).train()

    def loss(ids: Tensor, advantages: Tensor) -> Tensor:
        logits = model(input_ids=ids).logits[:, :-1].float()
        chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        mean: Tensor = (advantages[:, None] * chosen).mean()
        return -mean

    return capture(loss, torch.randint(VOCABULARY, (2, 128)), torch.randn(2))
