"""OpenRLHF: its policy loss and KL estimators."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

from torch import Tensor

from grpo_references import BATCH_NAMES

Options = dict[str, Any]


def without_packages() -> None:
    """Make the two modules importable without their packages' other imports (kernels, servers)."""
    if "openrlhf" in sys.modules:
        return
    spec = importlib.util.find_spec("openrlhf")
    assert spec is not None
    for name in ("openrlhf", "openrlhf.models"):
        package = sys.modules.setdefault(name, ModuleType(name))
        root = (spec.submodule_search_locations or [""])[0]
        package.__path__ = [root + name.removeprefix("openrlhf").replace(".", "/")]
    sys.modules.setdefault("deepspeed", ModuleType("deepspeed"))


def openrlhf_defaults() -> Options:
    """The options of the policy loss, as they are where nobody sets them."""
    without_packages()
    from openrlhf.models.loss import PolicyLoss

    options = inspect.signature(PolicyLoss.__init__).parameters.values()
    return {option.name: option.default for option in options if option.name != "self"}


def openrlhf_loss(options: Options, values: dict[str, Tensor], inputs: Options) -> Tensor:
    """``PolicyLoss``, ``compute_approx_kl`` and ``aggregate_loss``, put together as its actor does."""
    without_packages()
    from openrlhf.models.loss import PolicyLoss, aggregate_loss
    from openrlhf.models.utils import compute_approx_kl

    own = inspect.signature(PolicyLoss.__init__).parameters
    info = {
        "dp_size": options.get("dp_size", 1),
        "batch_num_tokens": inputs.get("num_tokens"),
        "global_batch_size": inputs.get("num_sequences"),
    }
    mask = values["mask"]
    loss: Tensor = PolicyLoss(**{k: v for k, v in options.items() if k in own})(
        values["log_probs"],
        values["old_log_probs"],
        values["advantages"].unsqueeze(1),
        action_mask=mask,
        rollout_log_probs=values["sampling_log_probs"],
        **info,
    )[0]
    if options.get("kl_coef"):
        kl = compute_approx_kl(
            values["log_probs"],
            values["ref_log_probs"],
            log_probs_old=values["old_log_probs"],
            kl_estimator=options.get("kl_estimator", "k1"),
            unbiased_gradient=options.get("kl_unbiased_gradient", False),
        )
        loss = loss + aggregate_loss(kl, mask, **info) * options["kl_coef"]
    if options.get("entropy_coef"):
        bonus = aggregate_loss(values["entropies"], mask, **info)
        loss = loss - bonus * options["entropy_coef"]
    return loss


def openrlhf_cases() -> list[Any]:
    """What is recorded of OpenRLHF."""
    totals = {"num_tokens": 211, "num_sequences": 48}
    cases: list[Any] = []
    for kind in ("ppo", "gspo"):
        base = {"policy_loss_type": kind, "clip_eps_high": 0.28}
        cases += [(base, batch, {}) for batch in BATCH_NAMES]
        cases += [
            (base | {"dual_clip": 1.6}, "far", {}),
            (base | {"token_level_loss": False, "dp_size": 2}, "drifted", totals),
            (base | {"dp_size": 2}, "drifted", totals),
            (base | {"is_correction_level": "token"}, "far", {}),
        ]
    for level in ("token", "seq"):
        for gating, band in (
            ("ratio", (0.8, 1.2)),
            ("binary_kl", (0.0, 0.07)),
            ("tv", (0.0, 0.17)),
        ):
            options = {"is_correction_level": level, "is_correction_gating": gating}
            cases.append((options | {"is_correction_threshold": band}, "drifted", {}))
    clip = {"is_correction_level": "token", "is_correction_mode": "clip"}
    cases.append((clip | {"is_correction_threshold": (0.8, 1.2)}, "far", {}))
    for estimator in ("k1", "k2", "k3"):
        for unbiased in (False, True):
            options = {"kl_coef": 0.1, "kl_estimator": estimator, "kl_unbiased_gradient": unbiased}
            cases.append((options, "far", {}))
    cases.append(({"entropy_coef": 0.01}, "drifted", {}))
    return cases
