"""Layouts of tensors that are made up to time work on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hilore_planner.passes import compat

NORMAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Types that are filled with normal numbers."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor to be made up; integers are drawn below ``limit``, and it may be ``on_host`` for any device's work."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    limit: int = 1
    on_host: bool = False

    def __repr__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name}{list(self.shape)}@{list(self.stride)}".replace(" ", "")

    def blank(self, device: torch.device) -> Tensor:
        """A tensor of this layout, whatever it holds."""
        return self._memory(device).as_strided(self.shape, self.stride)

    def made_up(self, device: torch.device) -> Tensor:
        """A tensor of this layout, and numbers in it."""
        memory = self._memory(device)
        if self.dtype in NORMAL:
            memory.normal_()
        elif self.dtype in (torch.int32, torch.int64):
            memory.random_(0, self.limit)
        else:
            memory.zero_()
        return memory.as_strided(self.shape, self.stride)

    def _memory(self, device: torch.device) -> Tensor:
        place = torch.device("cpu") if self.on_host else device
        return torch.empty(self.count, dtype=self.dtype, device=place)

    def in_rows(self) -> Layout:
        """A contiguous tensor as rows of its last dimension; others as they are."""
        if not self.shape or self.stride != _contiguous(self.shape):
            return self
        return replace(
            self,
            shape=(math.prod(self.shape[:-1]), self.shape[-1]),
            stride=(self.shape[-1], 1),
        )

    @property
    def count(self) -> int:
        """Elements of memory it spans."""
        steps = zip(self.shape, self.stride, strict=True)
        return 0 if 0 in self.shape else 1 + sum((size - 1) * step for size, step in steps)


def layout_of(value: Tensor, limit: int = 1) -> Layout:
    """The layout of a (fake) tensor, symbolic sizes at their hints."""
    shape, stride = (tuple(map(compat.hint, sizes)) for sizes in (value.shape, value.stride()))
    return Layout(shape, stride, value.dtype, limit, on_host=value.device.type == "cpu")


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
