"""A GRPO update on a model that is known by its shape: fake weights, a fake batch, a real program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hilore_planner.errors import HiloreError, OptionError
from hilore_planner.grpo.actor import actor_loss, add_adapters, random_batch
from hilore_planner.grpo.models import model_config
from hilore_planner.passes import compat

_DTYPES = ("bfloat16", "float16", "float32")

_CAUSAL_ATTENTION = "hilore_causal_sdpa"
"""Name under which transformers knows scaled dot product attention without a mask of its own."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One microbatch of a GRPO update.

    Attributes:
        model: a name of ``SHAPES``, or the path of a transformers ``config.json``.
        sequences: of ``prompt`` and ``response`` tokens each.
        lora: rank of adapters on every linear layer of the model's blocks; 0: every weight is trained.
        dtype: of the weights: bfloat16, float16 or float32.
    """

    model: str
    sequences: int
    prompt: int
    response: int
    lora: int = 0
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in ("sequences", "prompt", "response"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}; accepted: 1 or more")
        if self.lora < 0:
            raise OptionError(f"lora is {self.lora}; accepted: a rank, or 0 for none")
        if self.dtype not in _DTYPES:
            raise OptionError(f"dtype is {self.dtype!r}; accepted: {', '.join(_DTYPES)}")

    def __str__(self) -> str:
        adapters = f", LoRA of rank {self.lora}" if self.lora else ""
        return (
            f"{self.model}, {self.sequences} x ({self.prompt} + {self.response}) tokens, "
            f"{self.dtype}{adapters}"
        )


@dataclass(frozen=True, slots=True)
class FakeUpdate:
    """An update of fake tensors.

    Attributes:
        loss: batch in, scalar loss out; what ``torch.compile`` would get.
        inputs: the batch.
        parameters: how many numbers the model has.
        trained: how many of them get a gradient.
    """

    loss: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    parameters: int
    trained: int


def fake_update(workload: Workload) -> FakeUpdate:
    """Build the workload's model and batch without allocating them.

    Raises:
        OptionError: an unknown model, or a config that is no causal language model with a head of its own.
        HiloreError: transformers, or for adapters peft, is not installed.
    """
    try:
        with torch.device("meta"):
            model = _model(workload)
            if workload.lora:
                add_adapters(model, workload.lora)
        with compat.new_fake_mode():
            _make_fake(model)
            batch = random_batch(
                sequences=workload.sequences,
                prompt=workload.prompt,
                response=workload.response,
                vocab_size=model.config.vocab_size,
            )
    except ImportError as error:
        raise HiloreError(
            f"planning a model by name needs {error.name}: pip install 'hilore-planner[plan]'"
        ) from error
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return FakeUpdate(
        loss=actor_loss(model, prompt=workload.prompt, attention_mask=None),
        inputs=tuple(batch),
        parameters=sum(size for size, _ in sizes),
        trained=sum(size for size, is_trained in sizes if is_trained),
    )


def _model(workload: Workload) -> Any:
    from transformers import AutoModelForCausalLM

    config = model_config(workload.model)
    config.use_cache = False
    dtype: torch.dtype = getattr(torch, workload.dtype)
    try:
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=_attention(config)
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f"model {workload.model!r} cannot be built: {error}") from error
    if not hasattr(model, "lm_head"):
        raise OptionError(
            f"model {workload.model!r} ({type(model).__name__}) has no lm_head; accepted: "
            "causal language models of transformers that have one"
        )
    return model.train()


def _make_fake(model: nn.Module) -> None:
    """Put fake CPU tensors in the place of a model's meta tensors; Inductor folds those away as constants."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is not None and id(old) not in made:
                    new = torch.empty(old.shape, dtype=old.dtype)
                    is_weight = isinstance(old, nn.Parameter)
                    made[id(old)] = nn.Parameter(new, old.requires_grad) if is_weight else new
                if old is not None:
                    tensors[name] = made[id(old)]  # type: ignore[assignment]


def _attention(config: Any) -> str:
    """How transformers should run attention.

    It builds a mask for every attention it knows as soon as it is traced. Where plain causal attention is meant, an
    attention of another name has none. Windows need theirs.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    has_window = getattr(config, "sliding_window", None) is not None
    if kinds != {"full_attention"} or (has_window and getattr(config, "use_sliding_window", True)):
        return "sdpa"
    AttentionInterface.register(_CAUSAL_ATTENTION, sdpa_attention_forward)
    return _CAUSAL_ATTENTION
