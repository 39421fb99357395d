"""Advantages from rewards, relative to a prompt's group of samples.

Shapes: ``N`` samples; groups are consecutive runs of equal size, or given by an id per sample.

A constant reward that is not exact in binary leaves rounding noise in place of zero: with eight
rewards of 0.3 in fp32 the mean is off by an ulp, and dividing by a standard deviation of that size
yields up to a few hundredths. Such groups are set to exactly zero here, by a tolerance on the
spread of the rewards; :func:`zero_constant_groups` does it afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.base import at_least, choices

ROUNDINGS = 4
"""Units in the last place by which rewards of a group may differ and still count as constant."""


@dataclass(frozen=True, slots=True)
class AdvantageScheme:
    """``(reward − mean of the group) / (standard deviation + epsilon)``.

    Raises: OptionError for an unknown scale or a negative epsilon.
    """

    scale: str = "group"
    """Whose standard deviation divides: the ``group``'s, the ``batch``'s, or ``none``'s."""
    epsilon: float = 1e-4
    unbiased: bool = True
    """Bessel's correction: divide the sum of squares by one less than the count."""
    lone: str = "zero"
    """The advantage of a sample alone in its group: ``zero``, or its ``reward`` itself."""

    def __post_init__(self) -> None:
        choices("scale", self.scale, ("group", "batch", "none"))
        choices("lone", self.lone, ("zero", "reward"))
        at_least("epsilon", self.epsilon, 0.0)


TRL = AdvantageScheme(epsilon=1e-4)
"""trl 1.16 ``scale_rewards="group"``; its ``batch`` and ``none`` are the other scales."""
VERL = AdvantageScheme(epsilon=1e-6, lone="reward")
"""verl 0.9.1 ``compute_grpo_outcome_advantage``; scale ``none`` is its Dr. GRPO."""
OPENRLHF = AdvantageScheme(epsilon=1e-9)
"""OpenRLHF 0.11.2 ``group_norm``; scale ``none`` is its ``dr_grpo``."""


def group_advantages(
    rewards: Tensor,
    groups: int | Tensor,
    scheme: AdvantageScheme = TRL,
    *,
    tolerance: float | None = None,
) -> Tensor:
    """Advantages (N,) of ``rewards`` (N,); zero in groups of constant reward and where NaN.

    ``groups`` is a group's size or ids (N,). ``tolerance`` is the spread, relative to the group's
    largest reward, up to which it counts as constant; None: four units in the last place.

    Raises: OptionError if the groups do not fit the rewards.
    """
    ids = group_ids(groups, rewards)
    scored = ~rewards.isnan()
    advantages = centred(rewards, scored, ids)
    if scheme.scale != "none":
        over = ids if scheme.scale == "group" else torch.zeros_like(ids)
        advantages = advantages / (deviation(rewards, scored, over, scheme) + scheme.epsilon)
    advantages = zeroed(advantages, constant_groups(rewards, ids, tolerance)[ids])
    lone = (counts(scored, ids) == 1)[ids] & scored
    if scheme.lone == "reward":
        divisor = 1.0 if scheme.scale == "none" else 1.0 + scheme.epsilon
        return torch.where(lone, rewards / divisor, advantages)
    return zeroed(advantages, lone)


def zero_constant_groups(
    advantages: Tensor, groups: int | Tensor, *, tolerance: float | None = None
) -> Tensor:
    """``advantages`` (N,) with zeros in groups whose members all have the same one.

    Within a group they sum to zero, so equal ones can only be what rounding left of zero. Only for
    advantages that are centred by group; a group of one is left as it is.

    Raises: OptionError if the groups do not fit.
    """
    ids = group_ids(groups, advantages)
    shared = sums(torch.ones_like(ids), ids) > 1
    return zeroed(advantages, (constant_groups(advantages, ids, tolerance) & shared)[ids])


def group_ids(groups: int | Tensor, samples: Tensor) -> Tensor:
    """Ids from zero without gaps, (N,). Raises: OptionError if they do not fit the samples."""
    count = samples.shape[0]
    if isinstance(groups, int):
        if groups < 1 or count % groups:
            raise OptionError(f"group size is {groups}; accepted: a divisor of {count} samples")
        return torch.arange(count, device=samples.device) // groups
    if groups.shape != (count,):
        raise OptionError(f"groups has shape {tuple(groups.shape)}; accepted: ({count},)")
    inverse: Tensor = torch.unique(groups, return_inverse=True)[1]
    return inverse


def constant_groups(values: Tensor, ids: Tensor, tolerance: float | None) -> Tensor:
    """Which groups have a spread within the tolerance, (groups,) booleans; NaNs are left out."""
    relative = ROUNDINGS * torch.finfo(values.dtype).eps if tolerance is None else tolerance
    groups = int(ids.max()) + 1
    scored = values.isnan().logical_not()
    low = values.new_full((groups,), torch.inf).scatter_reduce(
        0, ids[scored], values[scored], "amin"
    )
    high = values.new_full((groups,), -torch.inf).scatter_reduce(
        0, ids[scored], values[scored], "amax"
    )
    return high - low <= relative * torch.maximum(low.abs(), high.abs())


def counts(scored: Tensor, ids: Tensor) -> Tensor:
    """Scored samples of each group, (groups,) integers."""
    return sums(scored.long(), ids)


def centred(rewards: Tensor, scored: Tensor, ids: Tensor) -> Tensor:
    """Rewards less their group's mean, (N,); zero where not scored."""
    values = torch.where(scored, rewards, 0.0)
    mean = sums(values, ids) / counts(scored, ids).clamp(min=1)
    return torch.where(scored, values - mean[ids], 0.0)


def deviation(rewards: Tensor, scored: Tensor, ids: Tensor, scheme: AdvantageScheme) -> Tensor:
    """Standard deviation of each sample's group, (N,)."""
    squares = sums(centred(rewards, scored, ids).square(), ids)
    divisor = counts(scored, ids) - int(scheme.unbiased)
    return torch.sqrt(squares / divisor.clamp(min=1))[ids]


def sums(values: Tensor, ids: Tensor) -> Tensor:
    """Sums by group, (groups,)."""
    return values.new_zeros(int(ids.max()) + 1).index_add(0, ids, values)


def zeroed(values: Tensor, where: Tensor) -> Tensor:
    """``values`` with zeros ``where``."""
    return torch.where(where, torch.zeros_like(values), values)
