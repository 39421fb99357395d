"""TRL: ``GRPOTrainer`` on a stand-in for the trainer."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Options = dict[str, Any]


def fragment(function: Any, first: str, last: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the lines of ``function`` from one that starts with ``first`` up to ``last``."""
    lines = inspect.getsource(function).splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    stop = next(i for i in range(start, len(lines)) if lines[i].strip().startswith(last))
    exec(textwrap.dedent("\n".join(lines[start:stop])), names)
    return names


def trl_defaults() -> Options:
    """The options of a loss, as they are where nobody sets them."""
    from trl.trainer.grpo_config import GRPOConfig

    names = (
        "loss_type importance_sampling_level epsilon epsilon_high delta beta use_bias_correction_kl "
        "sapo_temperature_pos sapo_temperature_neg vespo_k_pos vespo_lambda_pos vespo_k_neg "
        "vespo_lambda_neg off_policy_mask_threshold top_entropy_quantile entropy_coef "
        "max_completion_length"
    )
    return {name: GRPOConfig.__dataclass_fields__[name].default for name in names.split()}


def trl_loss(options: Options, values: dict[str, Tensor], inputs: Options) -> Tensor:
    """``GRPOTrainer._compute_loss`` on a stand-in for the trainer."""
    from trl import GRPOTrainer

    ids = torch.zeros_like(values["mask"])
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": values["mask"],
        "advantages": values["advantages"],
        "num_items_in_batch": torch.tensor(inputs.get("num_tokens", values["mask"].sum().item())),
        "ref_per_token_logps": values["ref_log_probs"],
    }
    if not inputs.get("no_old"):
        batch["old_per_token_logps"] = values["old_log_probs"]
    if "is_mode" in inputs:
        batch["importance_sampling_ratio"] = trl_weights(inputs, values)
    if inputs.get("sampling"):
        batch["sampling_per_token_logps"] = values["sampling_log_probs"]
    trainer = stand_in(options, values, use_vllm="is_mode" in inputs)
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, batch)
    return loss


def stand_in(options: Options, values: dict[str, Tensor], *, use_vllm: bool) -> SimpleNamespace:
    """What ``_compute_loss`` reads of a trainer: one process, options as configured."""
    from trl import GRPOTrainer
    from trl.trainer.grpo_config import GRPOConfig

    defaults = {f.name: f.default for f in GRPOConfig.__dataclass_fields__.values()}
    args = SimpleNamespace(**(defaults | {"steps_per_generation": 1} | options))
    trainer = SimpleNamespace(
        **vars(args),
        args=args,
        accelerator=SimpleNamespace(
            num_processes=options.get("num_processes", 1),
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
            pad_across_processes=lambda x, dim, pad_index: x,
        ),
        model=SimpleNamespace(training=True),
        epsilon_low=args.epsilon,
        current_gradient_accumulation_steps=options.get("gradient_accumulation_steps", 1),
        _entropy_bonus_enabled=args.entropy_coef != 0,
        aux_loss_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    trainer.use_vllm = use_vllm
    trainer.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    trainer.accelerator.sync_gradients = False
    trainer.get_high_entropy_mask = lambda *a: GRPOTrainer.get_high_entropy_mask(trainer, *a)
    numbers = values["log_probs"], values["entropies"], None
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: numbers
    return trainer


def trl_weights(inputs: Options, values: dict[str, Tensor]) -> Tensor:
    """The lines of ``GRPOTrainer`` that correct for the sampling engine."""
    from trl import GRPOTrainer

    trainer = SimpleNamespace(
        vllm_importance_sampling_mode=inputs["is_mode"],
        vllm_importance_sampling_clip_min=inputs["is_low"],
        vllm_importance_sampling_clip_max=inputs["is_high"],
    )
    names = {
        "self": trainer,
        "torch": torch,
        "math": math,
        "completion_mask": values["mask"],
        "tool_mask": None,
        "old_per_token_logps": values["old_log_probs"],
        "sampling_per_token_logps": values["sampling_log_probs"],
    }
    method = inspect.unwrap(GRPOTrainer._generate_and_score_completions)
    fragment(
        method,
        "mask = completion_mask if tool_mask is None else completion_mask * tool_mask",
        "# Compute the per-token log probabilities for the reference model",
        names,
    )
    ratio: Tensor = names["vllm_importance_sampling_ratio"]
    return ratio


def trl_advantages(rewards: Tensor, group_size: int, scale: str) -> Tensor:
    """The lines of ``GRPOTrainer`` that turn rewards into advantages."""
    from trl import GRPOTrainer
    from trl.trainer.utils import nanstd

    trainer = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize",
        scale_rewards=scale,
        reward_weights=torch.ones(1),
    )
    names = {
        "self": trainer,
        "torch": torch,
        "nanstd": nanstd,
        "device": rewards.device,
        "num_generations": group_size,
        "rewards_per_func": rewards.unsqueeze(1),
    }
    method = inspect.unwrap(GRPOTrainer._generate_and_score_completions)
    fragment(method, "unscorable_mask =", "# Slice to keep only the local part", names)
    advantages: Tensor = names["advantages"]
    return advantages


def trl_cases() -> list[Any]:
    """What is recorded of TRL: (options, batch, inputs)."""
    kinds = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
    clipped = kinds[:5]
    mask = {"is_low": None, "is_high": 1.3}
    cases: list[Any] = []
    for kind in kinds:
        high = {"epsilon_high": 1.2 if kind == "cispo" else 0.28}
        base = {"loss_type": kind, **high}
        weighted = {"is_mode": "token_mask", **mask}
        accumulated = {"gradient_accumulation_steps": 2, "steps_per_generation": 4}
        cases += [
            (base, "drifted", {}),
            (base, "on_policy", {"no_old": True}),
            (base | {"importance_sampling_level": "sequence"}, "far", {}),
            (base, "drifted", weighted),
            (base, "drifted", {"is_mode": "sequence_mask", **mask}),
            (base | accumulated | {"num_processes": 2}, "drifted", {"num_tokens": 321}),
        ]
    for kind in clipped:
        cases += [({"loss_type": kind, "delta": delta}, "far", {}) for delta in (1.1, 1.5)]
    for kind in ("grpo", "dapo"):
        for level in ("token", "sequence"):
            base = {"loss_type": kind, "importance_sampling_level": level}
            kl = {"beta": 0.04}
            cases += [
                (base | kl, "drifted", {}),
                (base | kl | {"use_bias_correction_kl": False}, "drifted", {}),
                (base | {"off_policy_mask_threshold": 0.05}, "drifted", {}),
                (base | {"off_policy_mask_threshold": 0.05}, "drifted", {"sampling": True}),
                (base | {"top_entropy_quantile": 0.3, "entropy_coef": 0.01}, "drifted", {}),
            ]
    for mode in ("token_truncate", "sequence_truncate"):
        inputs = {"is_mode": mode, "is_low": 0.8, "is_high": 1.1}
        cases.append(({"loss_type": "dapo", "entropy_coef": 0.02}, "drifted", inputs))
    return cases
