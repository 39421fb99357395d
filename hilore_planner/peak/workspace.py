"""What operations take while they run, beyond inputs and outputs: measured on the device.

Each distinct call (operation, shapes, strides, dtypes, other arguments) is run once on made-up data while
the device's allocator is watched; results are kept in memory and, if a path is given, in a file that
belongs to one device and one torch version.
"""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from hilore_planner.errors import HiloreError
from hilore_planner.passes.compat import clear_blas_workspaces, without_modes
from hilore_planner.peak.dry_run import makes_nothing
from hilore_planner.peak.measure import cpu_moments

SCHEMA = 1


class MeasuredWorkspaces:
    """Answers from its table, and runs what is not in it.

    Collectives are not run: a communication library's buffers are its own. On CUDA a measurement
    resets the device's peak statistics.
    """

    def __init__(self, device: torch.device | str, path: Path | None = None) -> None:
        """Read `path` if it is there.

        Raises:
            HiloreError: the file is damaged, or belongs to another device or torch version.
        """
        self.device = torch.device(device)
        self.path = path
        self._table: dict[str, int] = {}
        if path is not None and path.is_file():
            self._table = _read_table(path, self._owner())

    def transient_bytes(
        self, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """Bytes `op` takes at its peak beyond its inputs and outputs; tensors may be fake."""
        if _takes_nothing(op) or not self._is_used_by((args, kwargs)):
            return 0
        key = call_key(op, args, kwargs)
        if key not in self._table:
            with without_modes(), torch.no_grad():
                real_args, real_kwargs = _made_up((tuple(args), dict(kwargs)))
                self._table[key] = self._measure(lambda: op(*real_args, **real_kwargs))
            self._write()
        return self._table[key]

    def _is_used_by(self, arguments: Any) -> bool:
        leaves = tree_leaves(arguments)
        return any(
            isinstance(x, torch.Tensor) and x.device.type == self.device.type for x in leaves
        )

    def _measure(self, fn: Callable[[], object]) -> int:
        if self.device.type == "cpu":
            moments = cpu_moments(fn)
            return max(moments, default=0) - moments[-1] if moments else 0
        fn()  # libraries set up what they keep for good
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        result = fn()
        torch.cuda.synchronize(self.device)
        after_bytes = torch.cuda.memory_allocated(self.device)
        del result
        return torch.cuda.max_memory_allocated(self.device) - after_bytes

    def _owner(self) -> dict[str, Any]:
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        else:
            name = f"{platform.machine()}, {torch.get_num_threads()} threads"
        return {"schema": SCHEMA, "device": name, "torch": torch.__version__}

    def _write(self) -> None:
        if self.path is None:
            return
        text = json.dumps(
            self._owner() | {"transient_bytes": self._table}, indent=1, sort_keys=True
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        draft.write_text(text + "\n")
        draft.replace(self.path)


def call_key(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What tells one call from another as far as its workspace goes."""
    name = str(op) if isinstance(op, torch._ops.OpOverload) else f"extern.{op.__name__}"
    described = tree_map_only(torch.Tensor, _describe, (tuple(args), dict(kwargs)))
    return f"{name} {described}"


class _Text(str):
    """Text that shows itself without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _describe(tensor: torch.Tensor) -> _Text:
    shape, stride = list(tensor.shape), list(tensor.stride())
    return _Text(f"{str(tensor.dtype).removeprefix('torch.')}{shape}@{stride}".replace(" ", ""))


def _takes_nothing(op: Callable[..., Any]) -> bool:
    if makes_nothing(op):
        return True
    return isinstance(op, torch._ops.OpOverload) and op.namespace.startswith("_c10d")


def _made_up(arguments: Any) -> Any:
    return tree_map_only(torch.Tensor, _ones_like, arguments)


def _ones_like(tensor: torch.Tensor) -> torch.Tensor:
    """Data of the same layout: ones, or zeros where they might be used as indices or seeds."""
    real = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    # Elements of an expanded tensor lie on each other and cannot be written through it.
    memory = real.as_strided((real.untyped_storage().nbytes() // real.itemsize,), (1,))
    is_plain = tensor.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    memory.fill_(1 if is_plain else 0)
    return real


def _read_table(path: Path, owner: Mapping[str, Any]) -> dict[str, int]:
    try:
        content = json.loads(path.read_text())
        table = {str(key): int(value) for key, value in content["transient_bytes"].items()}
        found = {name: content[name] for name in owner}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise HiloreError(f"workspace file {path} is damaged: {error!r}; delete it") from error
    if found != owner:
        raise HiloreError(f"workspace file {path} is for {found}, not for {dict(owner)}; delete it")
    return table


def blas_workspace_bytes(device: torch.device | str) -> int:
    """Bytes of the caching allocator that one cuBLAS handle keeps for good once it is used.

    A training process has two handles a device: the calling thread's for the forward, and that of
    autograd's thread for the backward. Handles that are warm already are in `memory_allocated`.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return 0
    clear_blas_workspaces()
    factor = torch.ones(16, 16, device=device, dtype=torch.bfloat16)
    before_bytes = torch.cuda.memory_allocated(device)
    product = factor @ factor
    product_bytes = 512
    torch.cuda.synchronize(device)
    after_bytes = torch.cuda.memory_allocated(device)
    del product
    return after_bytes - before_bytes - product_bytes
