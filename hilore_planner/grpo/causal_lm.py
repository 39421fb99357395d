"""Log-probabilities of a sequence's own tokens under a transformers causal language model, without its logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hilore_planner.errors import OptionError
from hilore_planner.grpo import head


def log_probs(
    model: Any,
    input_ids: Tensor,
    *,
    logits_to_keep: int | None = None,
    temperature: float = 1.0,
    **inputs: Any,
) -> Tensor:
    """What the model says of the last tokens of each sequence, given those before them.

    In place of ``model(input_ids).logits`` and a softmax: called inside the compiled function, no logits leave it, and
    the head is cut into chunks (``docs/head.md``). Soft-capped and scaled logits (``final_logit_softcapping``,
    ``logits_scaling``, ``logit_scale``) are as the model's config has them.

    Shapes: ``input_ids`` (B, S); the result is (B, logits_to_keep), float32 or, for a float64 model, float64.

    Args:
        model: a transformers causal language model, with or without peft's adapters around it.
        input_ids: prompts and responses.
        logits_to_keep: tokens at the end of each sequence, usually the response; all but the first if None.
        temperature: what the sampler divided logits by.
        inputs: given to the model's decoder, such as ``attention_mask`` and ``position_ids``, both (B, S): their last
            column is cut off, as the last token's hidden state predicts none of these.

    Raises:
        OptionError: ``logits_to_keep`` is not between 1 and S - 1, ``temperature`` is not positive, or the model's head
            is not a linear layer.
    """
    length = input_ids.shape[1]
    kept = length - 1 if logits_to_keep is None else logits_to_keep
    if not 1 <= kept < length:
        raise OptionError(
            f"logits_to_keep: {kept} is not between 1 and {length - 1}, one less than the sequences' {length} tokens"
        )
    output = model.get_output_embeddings()
    if not isinstance(output, nn.Linear):
        raise OptionError(f"model: its head is a {type(output).__name__}, not a linear layer")
    inputs = {name: _without_last(value, length) for name, value in inputs.items()}
    states = model.get_decoder()(input_ids=input_ids[:, :-1], use_cache=False, **inputs)
    hidden = states.last_hidden_state[:, -kept:]
    config = model.config.get_text_config()
    return head.log_probs(
        hidden,
        output.weight,
        input_ids[:, -kept:],
        temperature=temperature * _divisor(config),
        bias=output.bias,
        softcap=_softcap(config),
    )


def _without_last(value: Any, length: int) -> Any:
    if isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == length:
        return value[:, :-1]
    return value


def _softcap(config: Any) -> float | None:
    return getattr(config, "final_logit_softcapping", None)


def _divisor(config: Any) -> float:
    """What the model itself divides its logits by."""
    scale = getattr(config, "logit_scale", None)
    return float(getattr(config, "logits_scaling", None) or 1.0) / (scale or 1.0)
