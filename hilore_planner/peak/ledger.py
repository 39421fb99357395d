"""The ledger that records a dry run.

It follows *storages*, not tensors: a view counts nothing, and a storage is given back when the last
tensor on it dies. It counts one device only.
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
from hilore_planner.peak.timeline import Launch, Moment, Owner

_ASSIGNMENT = re.compile(r"(\w[\w, ]*?)\s*=\s")


@dataclass(frozen=True, slots=True)
class _Entry:
    """An allocation, which has an owner; a launch, which has a name and changes nothing; else a release."""

    key: int
    delta_bytes: int
    line: int
    owner: Owner | None = None
    launched: str | None = None


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
    _live: dict[int, Allocation] = field(default_factory=dict)
    _ignored: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        """How many entries are recorded so far."""
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
        name = self._assigned_name() if name is None else name
        self._allocate(key, nbytes, name, self.current_line())
        weakref.finalize(storage, self._release, key).atexit = False

    def ignore(self, tensor: torch.Tensor) -> None:
        """Never count this storage; the caller keeps it alive as long as the ledger is used."""
        self._ignored.add(tensor.untyped_storage()._cdata)

    def spend(self, transient_bytes: int, name: str) -> None:
        """Count bytes that an operation takes and gives back while it runs."""
        if transient_bytes:
            self._allocate(-1, transient_bytes, name, self.current_line())
            self._release(-1)

    def launch(self, name: str) -> None:
        """Note that the wrapper's current line runs a kernel."""
        self._entries.append(_Entry(0, 0, self.current_line(), launched=name))

    def repeat(self, start: int, stop: int) -> None:
        """Let happen once more what is recorded from the ``start``-th entry to before the ``stop``-th.

        What it releases it must have allocated, but the allocator may serve it otherwise by now.
        """
        for entry in self._entries[start:stop]:
            if entry.owner is not None:
                self._allocate(entry.key, entry.owner.requested_bytes, entry.owner.name, entry.line)
            elif entry.launched is None:
                self._free(entry.key, entry.line)
            else:
                self._entries.append(entry)

    def launches(self, start: int = 0) -> tuple[tuple[Launch, ...], int]:
        """The kernels noted from the ``start``-th entry on, and the most counted after them."""
        totals, found = self.totals(), []
        for position in range(start, len(self)):
            entry = self._entries[position]
            if entry.launched is not None:
                start = self._after_releases(start, position)
                most_bytes = max(totals[start : position + 1])
                found.append(Launch(entry.launched, entry.line, most_bytes))
                start = position + 1
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
            elif entry.launched is None:
                del alive[entry.key]
        return tuple(sorted(alive.values(), key=lambda owner: -owner.counted_bytes))

    def moments(self, start: int = 0) -> tuple[Moment, ...]:
        """What was allocated and released from the `start`-th entry on."""
        return tuple(
            Moment(entry.line, self.text(entry.line), total_bytes)
            for entry, total_bytes in zip(
                self._entries[start:], self.totals()[start + 1 :], strict=True
            )
            if entry.launched is None
        )

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

    def _allocate(self, key: int, nbytes: int, name: str, line: int) -> None:
        allocation = self.allocator.allocate(nbytes)
        self._live[key] = allocation
        owner = Owner(name, line, nbytes, allocation.counted_bytes)
        self._entries.append(_Entry(key, allocation.counted_bytes, line, owner))

    def _release(self, key: int) -> None:
        self._free(key, self.current_line())

    def _free(self, key: int, line: int) -> None:
        allocation = self._live.pop(key)
        entry = _Entry(key, -allocation.counted_bytes, line)
        self.allocator.free(allocation)
        self._entries.append(entry)
