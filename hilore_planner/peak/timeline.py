"""What a dry run yields."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes allocated right after one allocation or release.

    Attributes:
        line: line number in the wrapper's file; 0 before the first line.
        label: that line's text.
        allocated_bytes: what the device's allocator counts then.
    """

    line: int
    label: str
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel or operation that a wrapper runs.

    Attributes:
        name: the operator's short name (`mm`); empty for a kernel that Inductor wrote.
        line: line number in the wrapper's file.
        allocated_bytes: the most counted since the launch before it, its own workspace included.
    """

    name: str
    line: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class Owner:
    """A storage alive at a peak.

    Attributes:
        name: the variable of the wrapper it was made for.
        line: line number in the wrapper's file where it was made; 0 for an input.
        requested_bytes: its own size.
        counted_bytes: what the allocator counts for it.
    """

    name: str
    line: int
    requested_bytes: int
    counted_bytes: int


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as a wrapper gets it or hands it out; no data.

    Attributes:
        shape, stride: in elements.
        storage_offset: in elements.
        storage_bytes: of the whole storage, of which the tensor may be a view; None: just what
            shape and stride reach.
        alias_group: tensors with equal names share one storage.
        is_kept: the caller holds it beyond the call (parameters, user-held tensors), as against
            owned by the call, which frees it after the last use (saved activations).
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    storage_offset: int = 0
    storage_bytes: int | None = None
    alias_group: str | None = None
    is_kept: bool = True

    @classmethod
    def of(
        cls, tensor: torch.Tensor, *, alias_group: str | None = None, is_kept: bool = True
    ) -> TensorSpec:
        """The spec of a tensor (real, fake or meta) with static shape."""
        storage = tensor.untyped_storage()
        return cls(
            tuple(int(size) for size in tensor.shape),
            tuple(int(step) for step in tensor.stride()),
            tensor.dtype,
            tensor.device,
            int(tensor.storage_offset()),
            int(storage.nbytes()),
            alias_group,
            is_kept,
        )

    @property
    def reach_bytes(self) -> int:
        """Bytes from the storage's start to behind the last element."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return (self.storage_offset + last + 1) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Timeline:
    """The allocations of one dry run in order.

    Attributes:
        moments: one per allocation or release that changes what is counted.
        start_bytes: counted before the first line (the inputs, and what was alive before).
        peak_bytes: the most ever counted; at least `start_bytes`.
        peak_line: line number in the wrapper's file where the peak is first reached.
        peak_label: that line's text.
        owners: who is alive at the peak, largest first.
        end_bytes: counted after the call, outputs included.
        reserved_bytes: what the allocator then holds from the device.
        outputs: the call's outputs; ints for sizes, None where there is none.
        launches: the kernels in order.
        last_bytes: the most counted after the last of them.
    """

    moments: tuple[Moment, ...]
    start_bytes: int
    peak_bytes: int
    peak_line: int
    peak_label: str
    owners: tuple[Owner, ...]
    end_bytes: int
    reserved_bytes: int
    outputs: tuple[TensorSpec | int | float | None, ...]
    launches: tuple[Launch, ...] = ()
    last_bytes: int = 0
