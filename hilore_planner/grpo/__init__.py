"""GRPO losses, their coefficients, and what follows from them: exposure and dead rows.

Names are loaded when they are first used, so that importing the package loads no torch. The function
``exposure`` is in the module of its name, and is :func:`hilore_planner.exposure` to users.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hilore_planner.grpo.advantages import AdvantageScheme as AdvantageScheme
    from hilore_planner.grpo.advantages import group_advantages as group_advantages
    from hilore_planner.grpo.advantages import zero_constant_groups as zero_constant_groups
    from hilore_planner.grpo.base import PolicyLoss as PolicyLoss
    from hilore_planner.grpo.base import Traits as Traits
    from hilore_planner.grpo.batch import LossBatch as LossBatch
    from hilore_planner.grpo.batch import packed_batch as packed_batch
    from hilore_planner.grpo.causal_lm import log_probs as log_probs
    from hilore_planner.grpo.dead_rows import LiveBatch as LiveBatch
    from hilore_planner.grpo.dead_rows import blocked_by as blocked_by
    from hilore_planner.grpo.dead_rows import drop_dead as drop_dead
    from hilore_planner.grpo.exposure import Exposure as Exposure
    from hilore_planner.grpo.masks import importance_weights as importance_weights
    from hilore_planner.grpo.masks import mask_truncated as mask_truncated
    from hilore_planner.grpo.microbatches import Microbatch as Microbatch
    from hilore_planner.grpo.microbatches import pack_microbatches as pack_microbatches
    from hilore_planner.grpo.microbatches import pad_microbatches as pad_microbatches
    from hilore_planner.grpo.openrlhf import OpenRLHFLoss as OpenRLHFLoss
    from hilore_planner.grpo.registry import LOSSES as LOSSES
    from hilore_planner.grpo.registry import make_loss as make_loss
    from hilore_planner.grpo.tiers import Tier as Tier
    from hilore_planner.grpo.tiers import Tiers as Tiers
    from hilore_planner.grpo.torchtitan import TorchtitanLoss as TorchtitanLoss
    from hilore_planner.grpo.trl import TRLLoss as TRLLoss
    from hilore_planner.grpo.verl import VerlLoss as VerlLoss

_NAMES = {
    "advantages": ("AdvantageScheme", "group_advantages", "zero_constant_groups"),
    "base": ("PolicyLoss", "Traits"),
    "batch": ("LossBatch", "packed_batch"),
    "causal_lm": ("log_probs",),
    "dead_rows": ("LiveBatch", "blocked_by", "drop_dead"),
    "exposure": ("Exposure",),
    "masks": ("importance_weights", "mask_truncated"),
    "microbatches": ("Microbatch", "pack_microbatches", "pad_microbatches"),
    "openrlhf": ("OpenRLHFLoss",),
    "registry": ("LOSSES", "make_loss"),
    "tiers": ("Tier", "Tiers"),
    "torchtitan": ("TorchtitanLoss",),
    "trl": ("TRLLoss",),
    "verl": ("VerlLoss",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
