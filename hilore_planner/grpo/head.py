"""Log-probabilities of sampled tokens from hidden states: the expression the head pass recognises.

It is plain PyTorch and holds logits of vocabulary size. Under ``backend="hilore"`` these are cut into
chunks of rows, whose gradient is taken as soon as they are there (``docs/head.md``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hilore_planner.errors import OptionError


def log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Log-probability of each target under ``softmax(softcap(hidden · weightᵀ + bias) / temperature)``.

    Shapes: ``hidden`` (..., D), ``weight`` (V, D), ``bias`` (V), ``targets`` (...) of integers; the
    result is (...), float32 or, for float64 inputs, float64. Pass only the positions that predict a
    response token (``hidden[:, prompt - 1 : -1]``), not a whole sequence to be cut afterwards.

    Args:
        hidden: last hidden states, after the final norm.
        weight: the head's weight; the embedding's, if tied.
        targets: the tokens that were sampled.
        temperature: what the sampler divided logits by.
        bias: added to the logits.
        softcap: logits are bounded to ± this by ``softcap · tanh(logits / softcap)``.

    Raises:
        OptionError: ``temperature`` or ``softcap`` is not positive, or shapes do not fit.
    """
    for name, value in (("temperature", temperature), ("softcap", softcap)):
        if value is not None and not value > 0:
            raise OptionError(f"{name}: {value} is not a positive number")
    if hidden.shape[-1] != weight.shape[-1]:
        raise OptionError(
            f"hidden of shape {tuple(hidden.shape)} does not fit weight of shape "
            f"{tuple(weight.shape)}: both must end with the hidden size"
        )
    if targets.dim() != hidden.dim() - 1:
        raise OptionError(
            f"targets of shape {tuple(targets.shape)} do not fit hidden of shape "
            f"{tuple(hidden.shape)}: one target for each hidden state"
        )
    for dim in range(targets.dim()):
        torch._check(targets.shape[dim] == hidden.shape[dim])  # type: ignore[no-untyped-call]
    logits = F.linear(hidden, weight, bias)
    if logits.dtype is not torch.float64:
        logits = logits.float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if temperature != 1.0:
        logits = logits / temperature
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return picked - torch.logsumexp(logits, dim=-1)
