"""What surrounds one compiled region: its device, and the memory held outside it."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_STATES_PER_PARAMETER = {
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adamax": 2,
    "RMSprop": 1,
    "Adagrad": 1,
}
"""Tensors of a parameter's size that an optimizer makes at its first step."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Memory around a region when it is compiled.

    Attributes:
        device: where the region runs.
        device_name: for people and cache keys.
        total_bytes: the device's memory.
        usable_bytes: of it, what this process may use: free now, or already in its allocator.
        base_bytes: allocated now and for the whole update: weights, inputs, gradients and optimizer state that exist.
        pending_optimizer_bytes: optimizer state that the first step will make.
    """

    device: torch.device
    device_name: str
    total_bytes: int
    usable_bytes: int
    base_bytes: int
    pending_optimizer_bytes: int

    @property
    def slack_bytes(self) -> int:
        """How much more than asked for may count: a caching allocator hands out blocks up to 1 MiB too large.

        Which, depends on what else the process allocated before; a few such blocks are always there.
        """
        return 4 * 2**20 if self.device.type == "cuda" else 0

    @property
    def slug(self) -> str:
        """The device and torch version, for file names."""
        name = f"{self.device_name}-torch{torch.__version__}"
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in name.lower())


def surroundings(inputs: Sequence[Any]) -> Surroundings:
    """Look at the device of a region's inputs."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    device = next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))
    pending = pending_optimizer_bytes(device)
    if device.type == "cuda":
        _make_library_workspaces(device)
        free, total = torch.cuda.mem_get_info(device)
        usable = free + torch.cuda.memory_reserved(device)
        name, base = torch.cuda.get_device_name(device), torch.cuda.memory_allocated(device)
        return Surroundings(device, name, total, usable, base, pending)
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    usable = page * os.sysconf("SC_AVPHYS_PAGES")
    return Surroundings(device, "cpu", total, usable, _held_bytes(tensors), pending)


def _make_library_workspaces(device: torch.device) -> None:
    """CuBLAS allocates a workspace for each thread that multiplies, and never frees it: count both now."""
    with torch.enable_grad():
        value = torch.ones(16, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
        torch.autograd.grad((value @ value).sum(), value)


def _held_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Storages of the inputs, and gradients they already have."""
    sizes: dict[int, int] = {}
    for value in tensors:
        gradient = value.grad if value.is_leaf else None
        for held in (value, gradient):
            if held is not None:
                storage = held.untyped_storage()
                sizes[storage._cdata] = int(storage.nbytes())
    return sum(sizes.values())


def pending_optimizer_bytes(device: torch.device) -> int:
    """State that live optimizers will make at their first step for parameters on ``device``."""
    total = 0
    for candidate in gc.get_objects():
        # type(): isinstance would touch weak proxies to objects that are gone
        if not issubclass(type(candidate), torch.optim.Optimizer) or candidate.state:
            continue
        states = _STATES_PER_PARAMETER.get(type(candidate).__name__, 0)
        for group in candidate.param_groups:
            factor = states + bool(group.get("amsgrad")) + bool(group.get("momentum"))
            total += factor * sum(
                p.numel() * p.element_size()
                for p in group["params"]
                if p.requires_grad and p.device == device
            )
    return total
