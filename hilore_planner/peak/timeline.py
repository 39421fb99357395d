"""What a dry run yields, and the ledger that records it.

A ledger follows *storages*, not tensors: a view counts nothing, and a storage is given back when
the last tensor on it dies. It counts one device only.
"""

from __future__ import annotations

import linecache
import re
import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType

import torch

from hilore_planner.peak.allocator import Allocation, Allocator

_ASSIGNMENT = re.compile(r"(\w[\w, ]*?)\s*=\s")


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


@dataclass(frozen=True, slots=True)
class _Entry:
    key: int
    delta_bytes: int
    line: int
    owner: Owner | None = None


def line_text(path: str, line: int) -> str:
    """A line of a file without indentation; empty where there is none."""
    return linecache.getline(path, line).strip()


def assigned_name(path: str, line: int) -> str:
    """The variable that a line of a file assigns to, or else all of the line."""
    text = line_text(path, line)
    target = _ASSIGNMENT.match(text)
    return target[1] if target else text


@dataclass(slots=True)
class Ledger:
    """Counts the storages of one device as they come and go.

    Attributes:
        device: the device counted; storages elsewhere are ignored.
        allocator: serves the requests; its statistics are what is recorded.
        source: path of the wrapper's file; the calling frame in it gives each entry its line.
    """

    device: torch.device
    allocator: Allocator
    source: str | None = None
    _entries: list[_Entry] = field(default_factory=list)
    _launches: list[tuple[str, int, int]] = field(default_factory=list)
    _live: dict[int, Allocation] = field(default_factory=dict)
    _ignored: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        """How many changes are recorded so far."""
        return len(self._entries)

    def counts(self, device: torch.device) -> bool:
        """Whether storages on `device` are counted; a missing index means the first device."""
        return device.type == self.device.type and (device.index or 0) == (self.device.index or 0)

    def track(self, tensor: torch.Tensor, name: str | None = None) -> None:
        """Count the storage under `tensor` from now until it dies; a known storage is no news.

        Without a name, it gets that of the variable the wrapper's current line assigns to.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or key in self._ignored or not self.counts(tensor.device):
            return
        nbytes = int(storage.nbytes())
        if nbytes == 0:
            return
        self._allocate(key, nbytes, self._assigned_name() if name is None else name)
        weakref.finalize(storage, self._release, key).atexit = False

    def ignore(self, tensor: torch.Tensor) -> None:
        """Never count this storage; the caller keeps it alive as long as the ledger is used."""
        self._ignored.add(tensor.untyped_storage()._cdata)

    def spend(self, transient_bytes: int, name: str) -> None:
        """Count bytes that an operation takes and gives back while it runs."""
        if transient_bytes:
            self._allocate(-1, transient_bytes, name)
            self._release(-1)

    def launch(self, name: str) -> None:
        """Note that the wrapper's current line runs a kernel."""
        self._launches.append((name, self.current_line(), len(self._entries)))

    def take_launches(self, start: int = 0) -> tuple[tuple[Launch, ...], int]:
        """The kernels noted since the ``start``-th entry, and the most counted after them."""
        totals, found = self.totals(), []
        for name, line, position in self._launches:
            start = self._after_releases(start, position)
            found.append(Launch(name, line, max(totals[start : position + 1])))
            start = position
        self._launches.clear()
        return tuple(found), max(totals[self._after_releases(start, len(self)) :])

    def _after_releases(self, start: int, stop: int) -> int:
        """The position once what the launch before ``start`` left is released."""
        while start < stop and self._entries[start].delta_bytes < 0:
            start += 1
        return start

    def peak_position(self, start: int = 0, stop: int | None = None) -> int:
        """How many entries are recorded up to the first highest point within [start, stop]."""
        totals = self.totals()[start : None if stop is None else stop + 1]
        return start + totals.index(max(totals))

    def totals(self) -> list[int]:
        """Counted bytes after the first n entries, for n from 0 to `len(self)`."""
        totals = [self.allocator.allocated_bytes - sum(e.delta_bytes for e in self._entries)]
        for entry in self._entries:
            totals.append(totals[-1] + entry.delta_bytes)
        return totals

    def owners(self, position: int) -> tuple[Owner, ...]:
        """Who is alive after the first `position` entries, largest first."""
        alive: dict[int, Owner] = {}
        for entry in self._entries[:position]:
            if entry.owner is not None:
                alive[entry.key] = entry.owner
            else:
                del alive[entry.key]
        return tuple(sorted(alive.values(), key=lambda owner: -owner.counted_bytes))

    def moments(self, start: int = 0) -> tuple[Moment, ...]:
        """The record from the `start`-th entry on."""
        lines = [entry.line for entry in self._entries[start:]]
        return tuple(map(Moment, lines, map(self.text, lines), self.totals()[start + 1 :]))

    def line_at(self, position: int) -> int:
        """The wrapper's line that made the `position`-th entry; 0 for none."""
        return self._entries[position - 1].line if position else 0

    def current_line(self) -> int:
        """Line number in the wrapper's file that is being run; 0 for none."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.source:
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def text(self, line: int) -> str:
        """A line of the wrapper's file, without indentation; empty for none."""
        return line_text(self.source, line) if self.source else ""

    def _assigned_name(self) -> str:
        return assigned_name(self.source, self.current_line()) if self.source else ""

    def _allocate(self, key: int, nbytes: int, name: str) -> None:
        allocation = self.allocator.allocate(nbytes)
        self._live[key] = allocation
        line, counted_bytes = self.current_line(), allocation.counted_bytes
        owner = Owner(name, line, nbytes, counted_bytes)
        self._entries.append(_Entry(key, counted_bytes, line, owner))

    def _release(self, key: int) -> None:
        allocation = self._live.pop(key)
        entry = _Entry(key, -allocation.counted_bytes, self.current_line())
        self.allocator.free(allocation)
        self._entries.append(entry)
