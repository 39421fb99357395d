"""What has been measured on one device with one torch version, in a file."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from hilore_planner.errors import HiloreError
from hilore_planner.passes import compat

SCHEMA = 4
OUT_OF_MEMORY = "out of memory when it was to be measured"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured time; None with the reason where it could not be measured.

    A reason ``is_passing`` if it need not be there next time; then it is not written.
    """

    what: str
    ns: int | None
    why: str = ""
    is_passing: bool = False


def tried(what: str, function: Callable[[], T]) -> T | Entry:
    """What a function returns, or an entry that says why it does not."""
    try:
        with compat.without_modes():
            return function()
    except torch.OutOfMemoryError:
        return Entry(what, None, OUT_OF_MEMORY, is_passing=True)
    except (
        Exception
    ) as error:  # whatever a kernel or the compiler may raise: the work is priced otherwise
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return Entry(what, None, text[:200])


@dataclass(frozen=True, slots=True)
class Owner:
    """The device and torch version that times belong to."""

    device: str
    torch_version: str

    @classmethod
    def of(cls, device: torch.device) -> Owner:
        """Of a device of this machine; on the CPU the number of threads counts too."""
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
        else:
            name = f"cpu, {torch.get_num_threads()} threads"
        return cls(name, str(torch.__version__))

    @property
    def file_name(self) -> str:
        """For the file in a cache folder."""
        name = f"costs-{self.device}-torch{self.torch_version}".lower()
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in name) + ".json"


class CostTable:
    """Times by content of the work; see :mod:`hilore_planner.costs.sample`."""

    def __init__(self, path: Path, owner: Owner) -> None:
        """Read ``path`` if it is there.

        Raises:
            HiloreError: the file is damaged, or belongs to another device or torch version.
        """
        self.path = path
        self.owner = owner
        self._entries: dict[str, Entry] = {}
        self.reload()

    @classmethod
    def of_file(cls, path: Path) -> CostTable:
        """The table in a file, whatever device it belongs to.

        Raises:
            HiloreError: the file is damaged.
        """
        return cls(path, _read(path, None)[0])

    def get(self, key: str) -> Entry | None:
        """What is known of this content."""
        return self._entries.get(key)

    def add(self, entries: Mapping[str, Entry]) -> None:
        """Take over measurements by their keys, and write the file."""
        self._entries |= entries
        _write(self.path, self.owner, self._entries)

    def reload(self) -> None:
        """Take over what others have written."""
        if self.path.is_file():
            self._entries |= _read(self.path, self.owner)[1]

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Inside, no other process measures into this file; what others have measured is known."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.reload()
            yield


def _read(path: Path, owner: Owner | None) -> tuple[Owner, dict[str, Entry]]:
    try:
        content = json.loads(path.read_text())
        schema, found = content["schema"], Owner(str(content["device"]), str(content["torch"]))
        entries = {str(key): _entry(value) for key, value in content["times"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise HiloreError(f"cost file {path} is damaged: {error!r}; delete it") from error
    if schema != SCHEMA:
        raise HiloreError(f"cost file {path} has schema {schema}, not {SCHEMA}; delete it")
    if owner is not None and owner != found:
        raise HiloreError(
            f"cost file {path} is for {found.device}, torch {found.torch_version}, not for {owner.device}, torch "
            f"{owner.torch_version}; delete it, or name another with the option costs"
        )
    return found, entries


def _entry(value: Mapping[str, Any]) -> Entry:
    ns = value["ns"]
    return Entry(str(value["what"]), None if ns is None else int(ns), str(value.get("why", "")))


def _write(path: Path, owner: Owner, entries: Mapping[str, Entry]) -> None:
    times = {
        key: {"what": e.what, "ns": e.ns} | ({"why": e.why} if e.why else {})
        for key, e in entries.items()
        if not e.is_passing
    }
    content = {
        "schema": SCHEMA,
        "device": owner.device,
        "torch": owner.torch_version,
        "times": times,
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    draft.replace(path)
