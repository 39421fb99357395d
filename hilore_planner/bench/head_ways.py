"""Ways to run a language-model head and a loss on it: plain, cut by the planner, and by others.

Shapes: B sequences, T tokens of each, N = B·T, D hidden size, V vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hilore_planner.backend import hilore
from hilore_planner.grpo.head import log_probs

Level = Literal["token", "sequence"]
"""Whether a ratio is taken for each token (GRPO) or for each sequence (GSPO)."""
CLIP = 0.2


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """What a head and its loss read; every token counts.

    Attributes:
        hidden: (B, T, D), wants a gradient.
        weight: (V, D), wants a gradient.
        targets: (B, T).
        old: log-probabilities that the ratio is taken to, (B, T), float32.
        advantages: (B,), float32.
    """

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    old: Tensor
    advantages: Tensor

    @property
    def tokens(self) -> int:
        """N."""
        return self.targets.numel()


def policy_loss(logp: Tensor, old: Tensor, advantages: Tensor, level: Level) -> Tensor:
    """Clipped surrogate of log-probabilities (B, T): mean over all tokens, or over sequences."""
    gap, advantage = logp - old, advantages[:, None]
    if level == "sequence":
        gap = gap.mean(1, keepdim=True)
    ratio = torch.exp(gap)
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


Run = Callable[[HeadBatch], Tensor]
"""Computes the loss, differentiable in ``hidden`` and ``weight``."""


@dataclass(frozen=True, slots=True)
class HeadWay:
    """One way; ``run`` is None where it cannot be tried, for ``reason``.

    ``library`` is what it comes from, with its version, if not from here.
    """

    name: str
    run: Run | None
    reason: str = ""
    library: str = ""


def head_ways(level: Level, chunks: tuple[int, ...]) -> Iterator[HeadWay]:
    """All ways, the plain one first; ``chunks`` are numbers of chunks to try, the first also by checkpointing."""
    yield HeadWay("plain", _compiled(level, torch.compile, dynamic=False))
    yield HeadWay("planned", planned(level, "auto"))
    yield HeadWay("planned, 1 GiB", _capped(level, 2**30))
    for count in chunks:
        yield HeadWay(f"planned, {count} chunks", planned(level, count))
    wide = planned(level, chunks[-1], head_totals="float32")
    yield HeadWay(f"planned, {chunks[-1]} chunks, float32 totals", wide)
    yield HeadWay(f"checkpointed, {chunks[0]} chunks", _checkpointed(level, chunks[0]))
    yield _if_installed(
        "liger", "liger-kernel", "liger_kernel.chunked_loss", lambda module: _liger(module, level)
    )
    yield _if_installed(
        "liger, TF32",
        "liger-kernel",
        "liger_kernel.chunked_loss",
        lambda module: _with_tf32(_liger(module, level)),
    )
    yield _if_installed("trl", "trl", "trl.trainer.utils", lambda module: _trl(module, level))


def _compiled(level: Level, compiler: Callable[..., Any], **options: Any) -> Run:
    def loss(hidden: Tensor, weight: Tensor, targets: Tensor, old: Tensor, gain: Tensor) -> Tensor:
        return policy_loss(log_probs(hidden, weight, targets), old, gain, level)

    compiled = compiler(loss, **options)
    return lambda b: compiled(b.hidden, b.weight, b.targets, b.old, b.advantages)


def _capped(level: Level, room_bytes: int) -> Run:
    """Planned under a cap that leaves so much beyond inputs and gradients, as they are at the first call."""
    made: list[Run] = []

    def run(b: HeadBatch) -> Tensor:
        if not made:
            inputs = (b.hidden, b.weight, b.targets, b.old, b.advantages)
            held_bytes = sum(value.nbytes for value in inputs)
            if b.hidden.is_cuda:
                held_bytes = torch.cuda.memory_allocated(b.hidden.device)
            cap_bytes = held_bytes + b.hidden.nbytes + b.weight.nbytes + room_bytes
            made.append(planned(level, "auto", memory_cap=cap_bytes))
        return made[0](b)

    return run


def planned(level: Level, head: int | str, **more: int | str) -> Run:
    """By the planner, with so many chunks or as it decides."""
    options = {"head": head, "reserved": 0, "costs": "roofline", **more}
    return _compiled(level, torch.compile, dynamic=False, backend=hilore, options=options)


def _checkpointed(level: Level, chunks: int) -> Run:
    """A chunk's log-probabilities are made by one compiled function, and once more in backward."""
    part = torch.compile(lambda hidden, weight, targets: log_probs(hidden, weight, targets))

    def run(b: HeadBatch) -> Tensor:
        rows = zip(
            b.hidden.flatten(0, 1).chunk(chunks), b.targets.flatten().chunk(chunks), strict=True
        )
        made = [checkpoint(part, hidden, b.weight, t, use_reentrant=False) for hidden, t in rows]
        return policy_loss(torch.cat(made).view_as(b.old), b.old, b.advantages, level)

    return run


def _if_installed(name: str, library: str, module: str, way: Callable[[Any], Run]) -> HeadWay:
    try:
        run = way(importlib.import_module(module))
        return HeadWay(name, run, library=f"{library} {version(library)}")
    except (ImportError, AttributeError) as error:
        return HeadWay(name, None, f"not installed: {error}")


def _liger(module: Any, level: Level) -> Run:
    """Liger's fused GRPO: forward and backward of one sequence at a time, in the forward."""
    loss_of = module.LigerFusedLinearGRPOLoss(
        beta=0.0,
        use_ref_model=False,
        epsilon_low=CLIP,
        epsilon_high=CLIP,
        loss_type="dapo" if level == "token" else "grpo",
        importance_sampling_level=level,
    )

    def run(b: HeadBatch) -> Tensor:
        mask = torch.ones_like(b.old)
        loss, _ = loss_of(
            b.hidden, b.weight, b.targets, mask, b.advantages, old_per_token_logps=b.old
        )
        return loss  # type: ignore[no-any-return]

    return run


def _with_tf32(run: Run) -> Run:
    """With float32 products in TF32: Liger makes its gradients' in float32, which is slow by default."""

    def faster(b: HeadBatch) -> Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return run(b)
        finally:
            torch.set_float32_matmul_precision(before)

    return faster


class _HeadOnly(nn.Module):
    """What TRL's fused head asks of a model, with hidden states for a backbone."""

    def __init__(self) -> None:
        super().__init__()
        config = SimpleNamespace()
        config.get_text_config = lambda: config
        self.config = config
        self.weight: Tensor | None = None
        self.base_model = lambda hidden, **_: SimpleNamespace(last_hidden_state=hidden)

    def get_output_embeddings(self) -> SimpleNamespace:
        """The head's weight, as TRL looks it up."""
        return SimpleNamespace(weight=self.weight, bias=None)


def _trl(module: Any, level: Level) -> Run:
    """TRL's fused head gives log-probabilities, and makes its tiles of logits once more in backward."""
    model: Any = _HeadOnly()
    module.add_fused_lm_head(model)

    def run(b: HeadBatch) -> Tensor:
        model.weight = b.weight
        made = model.forward(b.hidden, shift_labels=b.targets, fused_lm_head=True)
        return policy_loss(made.log_probs, b.old, b.advantages, level)

    return run
