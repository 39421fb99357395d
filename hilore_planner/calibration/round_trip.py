"""What backward gets of values that were kept by a codec, op by op.

Codecs are written for compiled kernels; run op by op, each of their steps reads and writes the whole value. Here whole
numbers of steps are found with as few of those as there are roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hilore_planner.passes.codecs import Codec
from hilore_planner.passes.codecs.base import scale_of
from hilore_planner.passes.codecs.floats import Fp8E4M3
from hilore_planner.passes.codecs.integers import Int8, PackedInt, step_size
from hilore_planner.passes.codecs.layout import InMemoryOrder
from hilore_planner.passes.codecs.rounding import NOISE_BITS, dither, starts_of

_NOISE_STEP = 2.0**-NOISE_BITS


def change_by(codec: Codec, factor: float = 1.0) -> Callable[[Tensor], Tensor]:
    """The round trip as a change, its error multiplied by ``factor``."""

    def change(value: Tensor) -> Tensor:
        back = round_trip(value, codec)
        return back if factor == 1.0 else torch.lerp(value, back, factor)

    return change


def round_trip(value: Tensor, codec: Codec) -> Tensor:
    """What ``codec`` decodes of what it encoded, to the bit, in the layout of ``value`` where that has no gaps."""
    if isinstance(codec, InMemoryOrder):
        back = round_trip(value.permute(codec.order), codec.codec)
        return back.permute([codec.order.index(dim) for dim in range(value.dim())])
    whole = value.contiguous()
    if isinstance(codec, Int8 | PackedInt | Fp8E4M3):
        size, largest = codec.grid(value.shape[-1])
        groups = whole.view(-1, size)
        peaks = torch.linalg.vector_norm(groups, math.inf, -1, keepdim=True).to(torch.float32)
        is_dithered = codec.rounding == "stochastic"
        if bool(peaks.isfinite().all()):
            if not isinstance(codec, Fp8E4M3):
                return _steps(groups, peaks, largest, is_dithered=is_dithered).view(value.shape)
            if not is_dithered:
                return _floats(groups, peaks, largest).view(value.shape)
    return codec.decode(codec.encode(whole), value.dtype)


def _steps(groups: Tensor, peaks: Tensor, largest: int, *, is_dithered: bool) -> Tensor:
    """Finite groups (N, g), of magnitudes up to ``peaks`` (N, 1), as whole numbers of steps."""
    step = 1 / largest
    room = largest / (largest + 0.5) if is_dithered else 1.0
    scales = scale_of(peaks, step, groups.dtype, room)
    per_step = step_size(scales, peaks, step).reciprocal()
    if is_dithered:
        steps = groups * per_step
        noise = dither(starts_of(scales), groups.shape[1:])
        exact = 2.0 ** (23 - NOISE_BITS) + largest + 1  # there float32 counts the noise's steps
        steps.add_(exact).add_(noise, alpha=_NOISE_STEP).floor_()
        steps.sub_(noise, alpha=_NOISE_STEP).sub_(exact - 0.5)
    else:
        middle = peaks.new_full((), 2.0**23 + largest)  # ties are rounded as the codec does
        steps = torch.addcmul(middle, groups, per_step).sub_(middle)
    return torch.mul(steps, scales, out=torch.empty_like(groups))


def _floats(groups: Tensor, peaks: Tensor, largest: int) -> Tensor:
    """The same as the nearest of eight-bit floats."""
    scales = scale_of(peaks, 1 / largest, groups.dtype)
    codes = (groups * scales.reciprocal()).to(torch.float8_e4m3fn)
    return torch.mul(codes.to(groups.dtype), scales, out=torch.empty_like(groups))
