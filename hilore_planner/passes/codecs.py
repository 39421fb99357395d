"""Codecs: how a smaller copy of an activation is made and read back.

Encode and decode are plain functions of tensors; the rewriting pass traces them into the graph, where Inductor fuses
encode into the producer and decode into the consumer.

Shapes: x (..., F), floating point. Groups run along the last dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.errors import OptionError

_GROUP = 128
_TINY = 1e-12


def group_size(features: int) -> int:
    """Largest divisor of ``features`` that is at most 128."""
    return next(size for size in range(min(_GROUP, features), 0, -1) if features % size == 0)


def _scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """Scales are bf16 for half-precision values (range matters, not digits), else fp32."""
    return torch.bfloat16 if dtype.itemsize == 2 else torch.float32


def _scales(values: Tensor, largest: float) -> Tensor:
    """Absolute maximum over the last dimension, as a scale that maps it to ``largest``."""
    peak = values.abs().amax(-1, keepdim=True).to(torch.float32)
    # bf16 rounding may put the scale below the maximum; the clamp on encode covers that.
    return (peak.clamp_min(_TINY) * (1.0 / largest)).to(_scale_dtype(values.dtype))


@dataclass(frozen=True, slots=True)
class Int8:
    """Symmetric int8 with one scale per group of up to 128 values of a row."""

    name: str = "int8"
    relative_error: float = 0.0063
    """Root-mean-square error over root-mean-square value, Gaussian rows, groups of 128."""

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes of the copy of a value of this shape."""
        count = math.prod(shape)
        return count + count // group_size(shape[-1]) * _scale_dtype(dtype).itemsize

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (..., F) -> codes (..., F/g, g) int8, scales (..., F/g, 1)."""
        size = group_size(x.shape[-1])
        groups = x.view(*x.shape[:-1], x.shape[-1] // size, size)
        scales = _scales(groups, 127.0)
        codes = (groups.to(torch.float32) / scales.to(torch.float32)).round().clamp(-127, 127)
        return codes.to(torch.int8), scales

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``."""
        codes, scales = parts
        return (codes.to(torch.float32) * scales.to(torch.float32)).to(dtype).flatten(-2)


@dataclass(frozen=True, slots=True)
class Fp8E4M3:
    """fp8 e4m3 with one scale per row."""

    name: str = "fp8_e4m3"
    relative_error: float = 0.0266
    """As above, one scale a row."""

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes of the copy of a value of this shape."""
        return math.prod(shape) + math.prod(shape[:-1]) * _scale_dtype(dtype).itemsize

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """X (..., F) -> codes (..., F) float8_e4m3fn, scales (..., 1)."""
        scales = _scales(x, 448.0)
        scaled = (x.to(torch.float32) / scales.to(torch.float32)).clamp(-448.0, 448.0)
        return scaled.to(torch.float8_e4m3fn), scales

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode, in ``dtype``."""
        codes, scales = parts
        return (codes.to(torch.float32) * scales.to(torch.float32)).to(dtype)


Codec = Int8 | Fp8E4M3
CODECS: dict[str, Codec] = {codec.name: codec for codec in (Int8(), Fp8E4M3())}


def codec_named(name: str) -> Codec:
    """The codec called ``name``.

    Raises:
        OptionError: there is none; the message lists those there are.
    """
    try:
        return CODECS[name]
    except KeyError:
        raise OptionError(f"unknown codec {name!r}; known codecs: {', '.join(CODECS)}") from None


def accepts(value: Tensor) -> bool:
    """Whether a value may be compressed: floating point, at least 16 bits, with a feature dimension."""
    return value.is_floating_point() and value.dtype.itemsize >= 2 and value.dim() >= 2
