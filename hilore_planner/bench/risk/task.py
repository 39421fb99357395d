"""A language model that has learned something, and GRPO microbatches of it.

Task: a response repeats a passage of its prompt over and over, from a place of its own, and about a tenth of its
tokens are noise. A model that predicts it attends over the sequence, and is sure of some tokens and surprised by
others, like a policy in training; and the responses to one prompt have some of their words in common, not all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hilore_planner.bench.risk.setting import GROUP, RiskSetting
from hilore_planner.grpo.actor import CAUSAL, DAPO, Batch, build_qwen2
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.causal_lm import log_probs
from hilore_planner.grpo.exposure import Exposure, exposure

_NOISE = 0.1
_PASSAGES = 4
"""Prompts are so many passages long."""
_TRAINED_SEQUENCES = 16
_LEARNING_RATE = 1e-3


def new_model(setting: RiskSetting, device: torch.device) -> Any:
    """With random weights."""
    dtype: torch.dtype = getattr(torch, setting.dtype)
    return build_qwen2(
        dtype=dtype,
        device=device,
        seed=setting.seed,
        vocab_size=setting.vocabulary,
        **setting.shape,
    )


def train(model: Any, setting: RiskSetting, device: torch.device) -> float:
    """Train on the task; returns the mean loss of the last tenth of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.95))
    warm = max(setting.train_steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warm)
    )
    losses = []
    for step in range(setting.train_steps):
        ids, _ = _sequences(setting, _TRAINED_SEQUENCES, seed=1_000_000 + step, device=device)
        loss = -_log_probs(model, ids, setting).mean()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return float(torch.stack(losses[-warm:]).mean())


def microbatch(
    model: Any, setting: RiskSetting, seed: int, device: torch.device, *, one_winner: bool = False
) -> Batch:
    """Responses of ``groups`` prompts with group-normalised advantages, the most exposed sequences first.

    A reward is the share of response tokens that are right; with ``one_winner`` only one response of a group gets one,
    whatever its tokens, as if its passage were the one that was asked for.
    """
    ids, right = _sequences(setting, setting.sequences, seed=seed, device=device, group=GROUP)
    rewards = right.view(-1, GROUP)
    if one_winner:
        rewards = torch.zeros_like(rewards)
        rewards[:, 0] = 1.0
    spread = rewards.std(1, keepdim=True) + 1e-4
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).flatten()
    with torch.no_grad():
        old = _log_probs(model, ids, setting)
    mask = torch.ones_like(old)
    exposed = exposure_of(ids, old, advantages, mask).sequence_squares
    order = exposed.argsort(descending=True).to(device)
    return Batch(ids[order], old[order], advantages[order], mask)


def exposure_of(ids: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Exposure:
    """Of a microbatch, on the CPU."""
    numbers = LossBatch(
        advantages=advantages.cpu(), mask=mask.cpu(), old_log_probs=old_log_probs.cpu()
    )
    return exposure(DAPO, numbers)


def _log_probs(model: Any, ids: Tensor, setting: RiskSetting) -> Tensor:
    """Of the response tokens, (B, R)."""
    return log_probs(model, ids, logits_to_keep=setting.response, attention_mask=CAUSAL)


def _sequences(
    setting: RiskSetting, count: int, *, seed: int, device: torch.device, group: int = 1
) -> tuple[Tensor, Tensor]:
    """Prompts, each ``group`` times, with responses, (count, P + R); and the share of right tokens, (count,)."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    prompts = torch.randint(
        setting.vocabulary, (count // group, setting.prompt), generator=generator
    ).repeat_interleave(group, 0)
    start = torch.randint(setting.prompt, (count, 1), generator=generator)
    passage = torch.arange(setting.response) % (setting.prompt // _PASSAGES)
    place = (start + passage) % setting.prompt
    noise = torch.randint(setting.vocabulary, place.shape, generator=generator)
    # Responses differ in how much is wrong, so that rewards within a group differ.
    level = 2 * _NOISE * torch.rand((count, 1), generator=generator)
    is_noise = torch.rand(place.shape, generator=generator) < level
    responses = torch.where(is_noise, noise, prompts.gather(1, place))
    right = 1 - is_noise.float().mean(1)
    return torch.cat([prompts, responses], 1).to(device), right.to(device)
