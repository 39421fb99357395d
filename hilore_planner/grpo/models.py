"""Shapes of public language models, by which one can be built without its weights.

All have RMS norms, gated (SwiGLU) feed-forward layers, rotary positions and grouped queries. Qwen2.5 has biases on
query, key and value; Qwen3 has norms on query and key. Source: the models' published ``config.json``.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hilore_planner.errors import OptionError

Family = Literal["qwen2", "qwen3", "llama"]
"""As transformers calls it."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a causal language model's tensors are sized by."""

    family: Family
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    is_tied: bool

    def config_fields(self) -> dict[str, Any]:
        """The shape in the words of a transformers config."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_size,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.is_tied,
        }


_QWEN, _QWEN_LARGE, _LLAMA = 151_936, 152_064, 128_256
SHAPES = {
    "qwen2.5-0.5b": ModelShape("qwen2", 896, 4864, 24, 14, 2, 64, _QWEN, True),
    "qwen2.5-1.5b": ModelShape("qwen2", 1536, 8960, 28, 12, 2, 128, _QWEN, True),
    "qwen2.5-3b": ModelShape("qwen2", 2048, 11008, 36, 16, 2, 128, _QWEN, True),
    "qwen2.5-7b": ModelShape("qwen2", 3584, 18944, 28, 28, 4, 128, _QWEN_LARGE, False),
    "qwen2.5-14b": ModelShape("qwen2", 5120, 13824, 48, 40, 8, 128, _QWEN_LARGE, False),
    "qwen2.5-32b": ModelShape("qwen2", 5120, 27648, 64, 40, 8, 128, _QWEN_LARGE, False),
    "qwen2.5-72b": ModelShape("qwen2", 8192, 29568, 80, 64, 8, 128, _QWEN_LARGE, False),
    "qwen3-0.6b": ModelShape("qwen3", 1024, 3072, 28, 16, 8, 128, _QWEN, True),
    "qwen3-1.7b": ModelShape("qwen3", 2048, 6144, 28, 16, 8, 128, _QWEN, True),
    "qwen3-4b": ModelShape("qwen3", 2560, 9728, 36, 32, 8, 128, _QWEN, True),
    "qwen3-8b": ModelShape("qwen3", 4096, 12288, 36, 32, 8, 128, _QWEN, False),
    "qwen3-14b": ModelShape("qwen3", 5120, 17408, 40, 40, 8, 128, _QWEN, False),
    "qwen3-32b": ModelShape("qwen3", 5120, 25600, 64, 64, 8, 128, _QWEN, False),
    "llama-3.2-1b": ModelShape("llama", 2048, 8192, 16, 32, 8, 64, _LLAMA, True),
    "llama-3.2-3b": ModelShape("llama", 3072, 8192, 28, 24, 8, 128, _LLAMA, True),
    "llama-3.1-8b": ModelShape("llama", 4096, 14336, 32, 32, 8, 128, _LLAMA, False),
    "llama-3.1-70b": ModelShape("llama", 8192, 28672, 80, 64, 8, 128, _LLAMA, False),
    "llama-3.1-405b": ModelShape("llama", 16384, 53248, 126, 128, 8, 128, _LLAMA, False),
}


def model_config(model: str) -> Any:
    """A transformers config: of a model in :data:`SHAPES`, or read from a ``config.json``.

    Raises:
        OptionError: neither a known name nor a readable config of a model that transformers knows.
    """
    if model.lower() in SHAPES:
        from transformers import AutoConfig

        shape = SHAPES[model.lower()]
        return AutoConfig.for_model(shape.family, **shape.config_fields())
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if path.suffix != ".json":
        near = difflib.get_close_matches(model.lower(), SHAPES, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            f"unknown model {model!r}{hint} (accepted: a config.json, or one of {', '.join(SHAPES)})"
        )
    return _read_config(path)


def _read_config(path: Path) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise OptionError(f"cannot read the config {path}: {error}") from error
    kind = fields.pop("model_type", None) if isinstance(fields, dict) else None
    if kind is None:
        raise OptionError(f"config {path} has no field model_type; accepted: a transformers config")
    try:
        config = AutoConfig.for_model(kind, **fields)
    except Exception as error:  # what a config checks, and how it complains, is its own affair
        raise OptionError(f"config {path} (model_type {kind!r}) is refused: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise OptionError(f"config {path} is of {kind!r}, which is no causal language model")
    return config
