"""verl: its actor's loss on padded tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_references import BATCH_NAMES

Options = dict[str, Any]


class Rows(dict[str, Any]):
    """What verl's loss reads of a TensorDict."""

    def select(self, *names: str) -> Rows:
        """The named fields."""
        return Rows({name: self[name] for name in names})

    def to_padded_tensor(self) -> Rows:
        """Padded already."""
        return self


def verl_defaults() -> Options:
    """The options of a loss, as they are where nobody sets them."""
    from verl.workers.config import ActorConfig, PolicyLossConfig

    actor = (
        "clip_ratio_low clip_ratio_high clip_ratio_c loss_agg_mode loss_scale_factor tau_pos tau_neg "
        "use_kl_loss kl_loss_coef kl_loss_type entropy_coeff"
    )
    policy = "loss_mode clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio ppo_kl_coef dro_beta"
    return {
        **{name: ActorConfig.__dataclass_fields__[name].default for name in actor.split()},
        **{name: PolicyLossConfig.__dataclass_fields__[name].default for name in policy.split()},
    }


def verl_loss(options: Options, values: dict[str, Tensor], inputs: Options) -> Tensor:
    """``ppo_loss`` on padded tensors."""
    from verl.workers.config import ActorConfig, PolicyLossConfig
    from verl.workers.utils import losses

    losses.no_padding_2_padding = lambda x, data: x
    own = {f.name for f in PolicyLossConfig.__dataclass_fields__.values()}
    policy = PolicyLossConfig(**{k: v for k, v in options.items() if k in own})
    rest = {k: v for k, v in options.items() if k not in own and k != "dp_size"}
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy, **rest
    )
    advantages = values["advantages"].unsqueeze(1) * values["mask"]
    data = Rows(
        dp_size=options.get("dp_size", 1),
        batch_num_tokens=inputs.get("num_tokens"),
        global_batch_size=inputs.get("num_sequences"),
        response_mask=values["mask"],
        old_log_probs=values["old_log_probs"],
        advantages=advantages,
        ref_log_prob=values["ref_log_probs"],
    )
    if inputs.get("weighted"):
        data["rollout_is_weights"] = values["is_weights"]
    output = {"log_probs": values["log_probs"]}
    if options.get("entropy_coeff"):
        output["entropy"] = values["entropies"]
    loss: Tensor = losses.ppo_loss(config, output, data)[0]
    return loss


def verl_advantages(rewards: Tensor, group_size: int, kind: str) -> Tensor:
    """Verl's GRPO estimators, looped and vectorised."""
    import numpy as np
    from verl.trainer.ppo import core_algos

    mask = torch.ones(len(rewards), 1)
    index = np.arange(len(rewards)) // group_size
    function = core_algos.compute_grpo_outcome_advantage
    if kind.startswith("vectorized"):
        function = core_algos.compute_grpo_vectorized_outcome_advantage
    advantages: Tensor = function(
        rewards.clone().unsqueeze(1), mask, index, norm_adv_by_std_in_grpo=not kind.endswith("none")
    )[0]
    return advantages[:, 0]


def verl_cases() -> list[Any]:
    """What is recorded of verl."""
    aggregations = (
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
        "seq-mean-token-mean",
    )
    modes = [
        "vanilla",
        "gspo",
        "sapo",
        "gpg",
        "cispo",
        "dppo_tv",
        "dppo_kl",
        "clip_cov",
        "kl_cov",
        "geo_mean",
        "dro",
    ]
    extra = {
        "clip_cov": {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.1},
        "kl_cov": {"kl_cov_ratio": 0.1},
        "dro": {"dro_beta": 0.5},
    }
    high = {"clip_ratio_high": 0.28}
    cases: list[Any] = []
    for mode in modes:
        base = {"loss_mode": mode, **high, **extra.get(mode, {})}
        cases += [(base, batch, {}) for batch in BATCH_NAMES]
        cases += [(base, "drifted", {"weighted": True})]
    for aggregation in aggregations:
        for mode in ("vanilla", "gspo", "geo_mean"):
            base = {"loss_mode": mode, "loss_agg_mode": aggregation, "dp_size": 2}
            cases.append((base, "drifted", {"num_tokens": 211, "num_sequences": 48}))
        base = {"loss_agg_mode": aggregation, "use_kl_loss": True, "entropy_coeff": 0.01}
        cases += [(base, "drifted", {}), (base | {"loss_mode": "sapo"}, "drifted", {})]
    cases.append(({"loss_agg_mode": aggregations[3], "loss_scale_factor": 64}, "drifted", {}))
    kinds = "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"
    for kind in (*kinds, *(f"{kind}+" for kind in kinds)):
        options = {"use_kl_loss": True, "kl_loss_type": kind, "kl_loss_coef": 0.1}
        cases.append((options, "far", {}))
    return cases
