"""Values whose dimensions lie in memory in another order than they are numbered: attention's outputs, transposes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hilore_planner.passes import compat
from hilore_planner.passes.codecs.base import Codec


def memory_order(value: Tensor) -> tuple[int, ...]:
    """The dimensions of a (fake) value, outermost in memory first."""
    strides = [compat.hint(stride) for stride in value.stride()]
    return tuple(sorted(range(value.dim()), key=lambda dim: (-strides[dim], dim)))


def is_contiguous(value: Tensor, order: Sequence[int] | None = None) -> bool:
    """Whether a (fake) value lies in memory without gaps or repetitions, its dimensions in this order."""
    expected = 1
    for dim in reversed(range(value.dim()) if order is None else order):
        size = compat.hint(value.shape[dim])
        if size != 1 and compat.hint(value.stride(dim)) != expected:
            return False
        expected *= size
    return True


@functools.cache
def _takes(codec: Codec, sizes: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a codec accepts contiguous values of these sizes; a model's layers ask the same again and again."""
    with compat.without_modes():
        return codec.accepts(torch.empty(sizes, dtype=dtype, device="meta"))


@dataclass(frozen=True, slots=True)
class InMemoryOrder:
    """Encodes a value as it lies in memory, and gives it back in the same layout."""

    codec: Codec
    order: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of the codec."""
        return self.codec.name

    @property
    def num_parts(self) -> int:
        """Of the codec."""
        return self.codec.num_parts

    @property
    def relative_error(self) -> float:
        """Of the codec."""
        return self.codec.relative_error

    @property
    def is_lossless(self) -> bool:
        """Of the codec."""
        return self.codec.is_lossless

    def accepts(self, value: Tensor) -> bool:
        """Dense values that the codec takes as they lie in memory."""
        if not is_contiguous(value, self.order):
            return False
        sizes = tuple(value.shape[dim] for dim in self.order)
        if any(isinstance(size, torch.SymInt) for size in sizes):
            return self.codec.accepts(value.permute(self.order))
        return _takes(self.codec, sizes, value.dtype)

    def kept_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes of the parts of a value of this shape."""
        return self.codec.kept_bytes([shape[dim] for dim in self.order], dtype)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """The parts of the value as it lies in memory."""
        return self.codec.encode(x.permute(self.order))

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """Inverse of encode."""
        places = [self.order.index(dim) for dim in range(len(self.order))]
        return self.codec.decode(parts, dtype).permute(places)
