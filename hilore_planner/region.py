"""What surrounds one compiled region: its device, and the memory held outside it."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hilore_planner import margins
from hilore_planner.passes.devices import DeviceProfile, profile_of
from hilore_planner.peak.dry_run import allocator_for
from hilore_planner.peak.measure import external_memory
from hilore_planner.sizes import format_bytes

log = logging.getLogger(__name__)

STATES_PER_PARAMETER = {
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
        profile: the device's rates.
        base_parts: what ``base_bytes`` are made of, by name.
    """

    device: torch.device
    device_name: str
    total_bytes: int
    usable_bytes: int
    base_bytes: int
    pending_optimizer_bytes: int
    profile: DeviceProfile
    base_parts: tuple[tuple[str, int], ...] = ()

    @property
    def slack_bytes(self) -> int:
        """How much more than asked for may count: blocks that are too large, a few of which are always there."""
        return margins.SLACK_BYTES if self.device.type == "cuda" else 0

    def margin_bytes(self, cap_bytes: int) -> int:
        """How much less than a cap an estimate should take for its code to stay under it: nothing on the CPU."""
        if self.device.type != "cuda":
            return 0
        return margins.margin_bytes(cap_bytes - self.base_bytes)

    @property
    def slug(self) -> str:
        """The device and torch version, for file names; on the CPU also how many threads work."""
        name = f"{self.device_name}-torch{torch.__version__}"
        if self.device.type == "cpu":
            name += f"-{torch.get_num_threads()}threads"
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in name.lower())


def surroundings(inputs: Sequence[Any]) -> Surroundings:
    """Look at the device of a region's inputs."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    device = next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))
    pending = pending_optimizer_bytes(device)
    parts, profile = base_parts(tensors, device), profile_of(device)
    if device.type == "cuda":
        _make_library_workspaces(device)
        free, total = torch.cuda.mem_get_info(device)
        usable = free + torch.cuda.memory_reserved(device)
        name, base = torch.cuda.get_device_name(device), torch.cuda.memory_allocated(device)
        parts["others"] = max(0, base - sum(parts.values()))
        _log_device(device)
        return Surroundings(
            device, name, total, usable, base, pending, profile, tuple(parts.items())
        )
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    usable = page * os.sysconf("SC_AVPHYS_PAGES")
    del parts["optimizer state"]  # outside of the region, and not seen on the CPU
    base = sum(parts.values())
    return Surroundings(device, "cpu", total, usable, base, pending, profile, tuple(parts.items()))


def _make_library_workspaces(device: torch.device) -> None:
    """CuBLAS allocates a workspace for each thread that multiplies, and never frees it: count both now."""
    with torch.enable_grad():
        value = torch.ones(16, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
        torch.autograd.grad((value @ value).sum(), value)


def _log_device(device: torch.device) -> None:
    found = external_memory(device)
    log.info(
        "%s: %s allocated by this process, %s cached by its allocator, %s held by others, %s free",
        device,
        format_bytes(found.allocated_bytes),
        format_bytes(found.cached_bytes),
        format_bytes(found.others_bytes),
        format_bytes(found.free_bytes),
    )


def base_parts(tensors: Sequence[torch.Tensor], device: torch.device) -> dict[str, int]:
    """Bytes of the inputs' storages, of gradients they already have, and of optimizer state that exists."""
    tensors = [value for value in tensors if value.device == device]
    leaves = [value for value in tensors if value.is_leaf and value.requires_grad]
    weights = _storages(value for value in tensors if isinstance(value, torch.nn.Parameter))
    gradients = _storages(value.grad for value in leaves if value.grad is not None)
    inputs = _storages(tensors).items() - weights.items() - gradients.items()
    state = _storages(_optimizer_state(device)).items() - weights.items() - gradients.items()
    return {
        "weights": sum(weights.values()),
        "inputs": sum(size for _, size in inputs),
        "earlier gradients": sum(gradients.values()),
        "optimizer state": sum(size for _, size in state),
    }


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    storages = (value.untyped_storage() for value in tensors)
    return {storage._cdata: int(storage.nbytes()) for storage in storages}


def _optimizer_state(device: torch.device) -> Iterator[torch.Tensor]:
    for optimizer in _optimizers():
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.device == device:
                    yield value


def _optimizers() -> Iterator[torch.optim.Optimizer]:
    for candidate in gc.get_objects():
        # type(): isinstance would touch weak proxies to objects that are gone
        if issubclass(type(candidate), torch.optim.Optimizer):
            yield candidate


def pending_optimizer_bytes(device: torch.device) -> int:
    """State that live optimizers will make on ``device`` at their first step, as its allocator counts."""
    allocator = allocator_for(device)
    for optimizer in _optimizers():
        if optimizer.state:
            continue
        states = STATES_PER_PARAMETER.get(type(optimizer).__name__, 0)
        for group in optimizer.param_groups:
            count = states + bool(group.get("amsgrad")) + bool(group.get("momentum"))
            for parameter in group["params"]:
                size_bytes = parameter.numel() * parameter.element_size()
                if parameter.requires_grad and parameter.device == device and size_bytes:
                    for _ in range(count):
                        allocator.allocate(size_bytes)
    return allocator.allocated_bytes
