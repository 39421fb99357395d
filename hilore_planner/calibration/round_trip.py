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


def change_by(
    codec: Codec, factor: float = 1.0, *, is_finite: bool = False
) -> Callable[[Tensor], Tensor]:
    """The round trip as a change, its error multiplied by ``factor``."""

    def change(value: Tensor) -> Tensor:
        back = round_trip(value, codec, is_finite=is_finite)
        return back if factor == 1.0 else torch.lerp(value, back, factor)

    return change


def round_trip(value: Tensor, codec: Codec, *, is_finite: bool) -> Tensor:
    """What ``codec`` decodes of what it encoded, to the bit, in the layout of ``value`` where that has no gaps.

    Faster where the value is known to be ``is_finite``, all of it.
    """
    if isinstance(codec, InMemoryOrder):
        back = round_trip(value.permute(codec.order), codec.codec, is_finite=is_finite)
        return back.permute([codec.order.index(dim) for dim in range(value.dim())])
    whole = value.contiguous()
    if is_finite and isinstance(codec, Int8 | PackedInt):
        is_dithered = codec.rounding == "stochastic"
        return _steps(whole, *codec.grid(whole.shape[-1]), is_dithered=is_dithered)
    if is_finite and isinstance(codec, Fp8E4M3) and codec.rounding == "nearest":
        return _floats(whole, *codec.grid(whole.shape[-1]))
    return codec.decode(codec.encode(whole), value.dtype)


def _steps(value: Tensor, size: int, largest: int, *, is_dithered: bool) -> Tensor:
    """As whole numbers of steps, a group's largest magnitude being ``largest`` of them."""
    groups, peaks = _grouped(value, size)
    room = largest / (largest + 0.5) if is_dithered else 1.0
    scales = scale_of(peaks, 1 / largest, groups.dtype, room)
    steps = groups * step_size(scales, peaks, 1 / largest).reciprocal()
    # From here on float32 counts whole steps, or those of the noise.
    start = 2.0 ** (23 - NOISE_BITS * is_dithered) + largest
    steps.add_(start)
    if is_dithered:
        noise = dither(starts_of(scales), groups.shape[1:])
        steps.add_(noise, alpha=_NOISE_STEP).floor_().sub_(noise, alpha=_NOISE_STEP).add_(0.5)
    steps.sub_(start)
    return torch.mul(steps, scales, out=torch.empty_like(groups)).view(value.shape)


def _floats(value: Tensor, size: int, largest: int) -> Tensor:
    """As the nearest of eight-bit floats, a group's largest magnitude being ``largest``."""
    groups, peaks = _grouped(value, size)
    scales = scale_of(peaks, 1 / largest, groups.dtype)
    codes = (groups * scales.reciprocal()).to(torch.float8_e4m3fn)
    return torch.mul(codes.to(groups.dtype), scales, out=torch.empty_like(groups)).view(value.shape)


def _grouped(value: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Groups (N, size), and the largest magnitude of each, float32 (N, 1)."""
    groups = value.view(-1, size)
    return groups, torch.linalg.vector_norm(groups, math.inf, -1, keepdim=True).to(torch.float32)
