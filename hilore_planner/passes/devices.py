"""Rooflines: how fast a device moves bytes and multiplies, for plans made without measuring.

Sources: H200 measured (device copy counting read and write; bf16 products of random data); others 0.8 of the
vendor's dense figures. The CPU row is a round figure for ordinary cores: good for ordering, not for seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hilore_planner.errors import OptionError


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Rates of one device."""

    name: str
    bytes_per_second: float
    half_flops_per_second: float
    """bf16 and fp16 matrix products."""
    single_flops_per_second: float
    launch_ns: int
    total_bytes: int
    allocation_bytes: int
    """The allocator rounds every block up to a multiple of this."""

    def flops_per_second(self, dtype: torch.dtype) -> float:
        """Rate of matrix products in ``dtype``."""
        half = dtype in (torch.bfloat16, torch.float16)
        return self.half_flops_per_second if half else self.single_flops_per_second


_GIB = 2**30
PROFILES = {
    profile.name: profile
    for profile in (
        DeviceProfile("cpu", 2.0e10, 1.0e11, 1.0e11, 1_000, 16 * _GIB, 64),
        DeviceProfile("h200", 4.3e12, 7.8e14, 4.0e14, 3_000, 140 * _GIB, 512),
        DeviceProfile("h100-80g", 2.7e12, 7.9e14, 4.0e14, 3_000, 80 * _GIB, 512),
        DeviceProfile("a100-80g", 1.6e12, 2.5e14, 1.2e14, 3_000, 80 * _GIB, 512),
        DeviceProfile("a100-40g", 1.25e12, 2.5e14, 1.2e14, 3_000, 40 * _GIB, 512),
        DeviceProfile("l40s", 6.9e11, 2.9e14, 1.4e14, 3_000, 48 * _GIB, 512),
        DeviceProfile("rtx4090", 8.0e11, 1.3e14, 6.6e13, 3_000, 24 * _GIB, 512),
    )
}

_BY_CARD = {
    "h200": "h200",
    "h100": "h100-80g",
    "a100-sxm4-80gb": "a100-80g",
    "a100 80gb": "a100-80g",
    "a100": "a100-40g",
    "l40s": "l40s",
    "rtx 4090": "rtx4090",
}


def profile_named(name: str) -> DeviceProfile:
    """The profile called ``name``.

    Raises:
        OptionError: there is none; the message lists those there are.
    """
    try:
        return PROFILES[name.lower()]
    except KeyError:
        known = ", ".join(sorted(PROFILES))
        raise OptionError(f"unknown device profile {name!r}; known profiles: {known}") from None


def profile_of(device: torch.device) -> DeviceProfile:
    """The profile of a device of this machine; the nearest known card where it is not in the table."""
    if device.type == "cpu":
        return PROFILES["cpu"]
    card = torch.cuda.get_device_name(device).lower() if torch.cuda.is_available() else ""
    for fragment, name in _BY_CARD.items():
        if fragment in card:
            return PROFILES[name]
    return PROFILES["h100-80g"]
