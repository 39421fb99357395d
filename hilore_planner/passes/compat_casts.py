"""A cast of our own, and how Inductor lowers it: the part of :mod:`compat` that converts."""

from __future__ import annotations

import functools
from typing import Any

import torch

from hilore_planner.passes.compat_ops import lowered

_LARGEST = 448.0


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

        if value.get_device().type != "cuda" or torch.version.cuda is None:
            aten = torch.ops.aten
            value = lowerings[aten.clamp_min.default](value, -_LARGEST)
            value = lowerings[aten.clamp_max.default](value, _LARGEST)
        return to_dtype(value, torch.float8_e4m3fn)

    return lowered(torch.ops.hilore.to_e4m3.default, lowering)
