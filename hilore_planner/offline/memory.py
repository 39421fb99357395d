"""What a device that is not there would hold around an update."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import torch

from hilore_planner.errors import OptionError
from hilore_planner.passes.devices import DeviceProfile
from hilore_planner.region import (
    STATES_PER_PARAMETER,
    Surroundings,
    base_parts,
    pending_optimizer_bytes,
)

OPTIMIZERS = {"none": 0, "sgd": 0} | {
    name.lower(): count for name, count in STATES_PER_PARAMETER.items()
}
"""Tensors of a parameter's size and dtype that each optimizer holds."""


def surroundings_on(
    profile: DeviceProfile, inputs: Sequence[Any], *, optimizer: str | None
) -> Surroundings:
    """The surroundings of a region on a device known by its profile only, with the whole device free.

    Args:
        profile: the device.
        inputs: of the region: parameters, buffers, batch; real or fake, on any device.
        optimizer: whose state is held, one of :data:`OPTIMIZERS`; None: that of the optimizers there are.

    Raises:
        OptionError: an unknown optimizer.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    parts, pending = base_parts(tensors, tensors[0].device), 0
    if optimizer is None:
        pending = pending_optimizer_bytes(tensors[0].device)
    else:
        parts["optimizer state"] = state_count(optimizer) * _trained_bytes(tensors)
    parts["others"] = profile.workspace_bytes
    is_cpu = profile.name == "cpu"
    return Surroundings(
        device=torch.device("cpu" if is_cpu else "cuda"),
        device_name=f"{profile.name} (profile)",
        total_bytes=profile.total_bytes,
        usable_bytes=profile.total_bytes,
        base_bytes=sum(parts.values()),
        pending_optimizer_bytes=pending,
        profile=profile,
        base_parts=tuple(parts.items()),
    )


def _trained_bytes(tensors: Sequence[torch.Tensor]) -> int:
    trained = {id(t): t for t in tensors if isinstance(t, torch.nn.Parameter) and t.requires_grad}
    return sum(p.numel() * p.element_size() for p in trained.values())


def state_count(optimizer: str) -> int:
    """How many tensors of a parameter's size an optimizer holds for it.

    Raises:
        OptionError: an unknown optimizer.
    """
    name = optimizer.lower()
    if name not in OPTIMIZERS:
        near = difflib.get_close_matches(name, OPTIMIZERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(
            f"unknown optimizer {optimizer!r}{hint} (accepted: {', '.join(OPTIMIZERS)})"
        )
    return OPTIMIZERS[name]
