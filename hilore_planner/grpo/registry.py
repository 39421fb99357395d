"""Every supported loss by name: ``framework/loss``, as in ``trl/dapo`` or ``verl/gspo``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from hilore_planner.grpo.base import PolicyLoss, choices
from hilore_planner.grpo.openrlhf import OpenRLHFLoss
from hilore_planner.grpo.torchtitan import TorchtitanLoss
from hilore_planner.grpo.trl import LOSS_TYPES, TRLLoss
from hilore_planner.grpo.verl import VerlLoss
from hilore_planner.grpo.verl_modes import MODES


@dataclass(frozen=True, slots=True)
class Entry:
    """One name: a configuration class and the options that the name fixes."""

    kind: type[TRLLoss | VerlLoss | OpenRLHFLoss | TorchtitanLoss]
    fixed: dict[str, Any]


LOSSES: dict[str, Entry] = {
    **{f"trl/{name}": Entry(TRLLoss, {"loss_type": name}) for name in LOSS_TYPES},
    **{f"verl/{name}": Entry(VerlLoss, {"loss_mode": name}) for name in MODES},
    "openrlhf/ppo": Entry(OpenRLHFLoss, {"policy_loss_type": "ppo"}),
    "openrlhf/gspo": Entry(OpenRLHFLoss, {"policy_loss_type": "gspo"}),
    "torchtitan/dapo": Entry(TorchtitanLoss, {}),
}


def make_loss(name: str, **options: Any) -> PolicyLoss:
    """The loss called ``name``, configured with its framework's own option names.

    Raises: OptionError for an unknown name or option, or a value out of range.
    """
    choices("loss", name, tuple(LOSSES))
    entry = LOSSES[name]
    accepted = [f.name for f in fields(entry.kind) if f.name not in entry.fixed]
    for option in options:
        choices(f"an option of {name}", option, tuple(accepted))
    return entry.kind(**entry.fixed, **options)
