"""Rooflines: how fast a device moves bytes and multiplies, for plans made without measuring.

Sources: H200 measured (device copy counting read and write; bf16 products of random data); others 0.8 of the
vendor's dense figures. Memory is what the driver reports to a process, which is less than the card's name says. The
CPU row is a round figure for ordinary cores: good for ordering, not for seconds.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

import torch

from hilore_planner.errors import OptionError

AttentionKernel = Literal["cpu", "flash", "cudnn"]


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Rates and sizes of one device.

    Attributes:
        half_flops_per_second: bf16 and fp16 matrix products.
        allocation_bytes: the allocator rounds every block up to a multiple of this.
        attention: the kernel that torch prefers there for scaled dot product attention.
        workspace_bytes: what libraries keep allocated for good (cuBLAS, a block for each of two threads).
    """

    name: str
    bytes_per_second: float
    half_flops_per_second: float
    single_flops_per_second: float
    launch_ns: int
    total_bytes: int
    allocation_bytes: int
    attention: AttentionKernel = "flash"
    workspace_bytes: int = 0

    def flops_per_second(self, dtype: torch.dtype | None) -> float:
        """Rate of matrix products in ``dtype``; None counts as single precision."""
        half = dtype in (torch.bfloat16, torch.float16)
        return self.half_flops_per_second if half else self.single_flops_per_second


_MIB, _GIB = 2**20, 2**30
_EARLIER_BLAS = 2 * 8_320 * 1024
"""Two blocks of 8.125 MiB; from Hopper on it is two of 32 MiB."""
_HOPPER_BLAS = 2 * 32 * _MIB


def _card(
    name: str, bandwidth: float, half: float, single: float, memory_gib: float, is_hopper: bool
) -> DeviceProfile:
    return DeviceProfile(
        name=name,
        bytes_per_second=bandwidth,
        half_flops_per_second=half,
        single_flops_per_second=single,
        launch_ns=3_000,
        total_bytes=int(memory_gib * _GIB),
        allocation_bytes=512,
        attention="cudnn" if is_hopper else "flash",
        workspace_bytes=_HOPPER_BLAS if is_hopper else _EARLIER_BLAS,
    )


PROFILES = {
    profile.name: profile
    for profile in (
        DeviceProfile("cpu", 2.0e10, 1.0e11, 1.0e11, 1_000, 16 * _GIB, 64, "cpu"),
        _card("b200", 6.4e12, 1.8e15, 9.0e14, 178.0, is_hopper=True),
        _card("h200", 4.3e12, 7.8e14, 4.0e14, 139.7, is_hopper=True),
        _card("h100-80g", 2.7e12, 7.9e14, 4.0e14, 79.1, is_hopper=True),
        _card("a100-80g", 1.6e12, 2.5e14, 1.2e14, 79.1, is_hopper=False),
        _card("a100-40g", 1.25e12, 2.5e14, 1.2e14, 39.3, is_hopper=False),
        _card("l40s", 6.9e11, 2.9e14, 1.4e14, 44.4, is_hopper=False),
        _card("rtx4090", 8.0e11, 1.3e14, 6.6e13, 23.6, is_hopper=False),
    )
}

_BY_CARD = {
    "b200": "b200",
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
        longer = [known for known in PROFILES if name and known.startswith(name.lower())]
        near = longer or difflib.get_close_matches(name.lower(), PROFILES, n=1, cutoff=0.4)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        known = ", ".join(sorted(PROFILES))
        raise OptionError(
            f"unknown device profile {name!r}{hint} (known profiles: {known})"
        ) from None


def profile_of(device: torch.device) -> DeviceProfile:
    """The profile of a device of this machine; the nearest known card where it is not in the table."""
    if device.type == "cpu":
        return PROFILES["cpu"]
    card = torch.cuda.get_device_name(device).lower() if torch.cuda.is_available() else ""
    for fragment, name in _BY_CARD.items():
        if fragment in card:
            return PROFILES[name]
    return PROFILES["h100-80g"]
