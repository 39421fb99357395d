"""Casts of our own, and how Inductor lowers them: the part of :mod:`compat` that converts."""

from __future__ import annotations

import functools
from typing import Any

import torch

from hilore_planner.passes.compat_ops import lowered

_LARGEST = 448.0
_NAN = 0x7FFFFFFF


@functools.cache
def to_e4m3() -> Any:
    """The operator ``to_e4m3(value)``: float32 to the nearest of float8_e4m3fn, 448 for what is larger; NaNs stay.

    A cast of torch makes NaNs of what is larger, but those that Inductor has NVIDIA devices do make 448 of it. There
    the operator is such a cast, half a step for each value; elsewhere limits come first, which take a kernel six steps.
    """

    @torch.library.custom_op("hilore::to_e4m3", mutates_args=(), tags=(torch.Tag.pointwise,))
    def op(value: torch.Tensor) -> torch.Tensor:
        return value.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)

    @op.register_fake
    def _(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value, dtype=torch.float8_e4m3fn)

    def lowering(value: Any) -> Any:
        from torch._inductor.lowering import lowerings, to_dtype

        if not _is_nvidia(value):
            aten = torch.ops.aten
            value = lowerings[aten.clamp_min.default](value, -_LARGEST)
            value = lowerings[aten.clamp_max.default](value, _LARGEST)
        return to_dtype(value, torch.float8_e4m3fn)

    return lowered(torch.ops.hilore.to_e4m3.default, lowering)


@functools.cache
def to_bits() -> Any:
    """The operator ``to_bits(value)``: the bits of a calculated float32 as int32, for every NaN 0x7FFFFFFF.

    NVIDIA devices calculate no other NaN: there the operator is no step at all.
    """

    @torch.library.custom_op("hilore::to_bits", mutates_args=(), tags=(torch.Tag.pointwise,))
    def op(value: torch.Tensor) -> torch.Tensor:
        return value.view(torch.int32).masked_fill(value.isnan(), _NAN)

    @op.register_fake
    def _(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value, dtype=torch.int32)

    def lowering(value: Any) -> Any:
        from torch._inductor.lowering import lowerings, to_dtype_bitcast

        bits = to_dtype_bitcast(value, torch.int32)
        if _is_nvidia(value):
            return bits
        return lowerings[torch.ops.aten.where.self](
            lowerings[torch.ops.aten.isnan.default](value), _NAN, bits
        )

    return lowered(torch.ops.hilore.to_bits.default, lowering)


def _is_nvidia(value: Any) -> bool:
    """Whether a lowered value is made by an NVIDIA device."""
    return value.get_device().type == "cuda" and torch.version.cuda is not None
