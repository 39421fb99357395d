"""The globals a generated wrapper gets for a dry run, instead of its module's own.

Works on any device's wrapper without that device: nothing here touches a real one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hilore_planner.errors import RegionError
from hilore_planner.peak.ledger import Ledger
from hilore_planner.peak.wrapper import Wrapper

Spend = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], None]

_DEVICE_TYPES = ("cpu", "cuda", "xpu", "mtia")


def rebind_call(
    wrapper: Wrapper, mode: FakeTensorMode, ledger: Ledger, spend: Spend
) -> Callable[[list[Any]], Any]:
    """A wrapper's entry, bound to accounting globals.

    Args:
        wrapper: the generated wrapper.
        mode: the fake mode that constants are brought into.
        ledger: told which storages are constants.
        spend: called for every operation that writes into given buffers.
    """
    function, entry_point = wrapper.entry_function(), wrapper.call
    original = function.__globals__
    namespace = {
        name: _substitute(name, value, mode, ledger, spend) for name, value in original.items()
    }
    namespace.update(_allocation_names(ledger))

    def rebind(old: Any) -> Any:
        if not isinstance(old, FunctionType) or old.__globals__ is not original:
            return old
        return FunctionType(
            old.__code__, namespace, old.__name__, old.__defaults__, old.__closure__
        )

    namespace.update({name: rebind(value) for name, value in namespace.items()})
    entry = rebind(function)
    if not isinstance(entry_point, MethodType):
        return entry  # type: ignore[no-any-return]
    partitions = [rebind(part) for part in wrapper.partitions]
    return functools.partial(entry, SimpleNamespace(partitions=partitions))


def _substitute(name: str, value: Any, mode: FakeTensorMode, ledger: Ledger, spend: Spend) -> Any:
    if isinstance(value, torch.Tensor):
        fake = mode.from_tensor(value, static_shapes=True)
        ledger.ignore(fake)
        return fake
    if name == "extern_kernels":
        return _ExternKernels(value, spend)
    if isinstance(value, ModuleType | type):
        return value
    kernel = functools.partial(_launch, ledger)
    if name.startswith("cpp_") and callable(value):
        return kernel
    return SimpleNamespace(run=kernel) if hasattr(value, "run") else value


def _launch(ledger: Ledger, *args: Any, **kwargs: Any) -> None:
    """Stands for a kernel: it writes into buffers the wrapper has already allocated."""
    ledger.launch("")


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a check."""


def _allocation_names(ledger: Ledger) -> dict[str, Any]:
    cuda = _Cuda()
    names: dict[str, Any] = {
        f"empty_strided_{kind}": functools.partial(_empty_strided, kind, cuda)
        for kind in _DEVICE_TYPES
    }
    return names | {
        "empty_strided_cpu_pinned": functools.partial(_empty_strided, "cpu", cuda),
        "empty_strided_p2p": _refuse_symmetric_memory,
        "reinterpret_tensor": _reinterpret_tensor,
        "alloc_from_pool": _alloc_from_pool,
        "assert_alignment": _do_nothing,
        "get_raw_stream": lambda index: 0,
        "torch": _Torch(cuda),
    }


def _empty_strided(
    kind: str, cuda: _Cuda, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    device = torch.device(kind, cuda.index) if kind == "cuda" else torch.device(kind)
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _refuse_symmetric_memory(*args: Any, **kwargs: Any) -> None:
    raise RegionError("symmetric memory is not followed")


def _reinterpret_tensor(
    tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset_increment: int = 0
) -> torch.Tensor:
    return torch.as_strided(tensor, shape, stride, tensor.storage_offset() + offset_increment)


def _alloc_from_pool(
    pool: torch.Tensor,
    offset_bytes: int,
    dtype: torch.dtype,
    shape: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    whole = torch.as_strided(pool, (pool.untyped_storage().nbytes() // pool.itemsize,), (1,), 0)
    return torch.as_strided(whole.view(dtype), shape, stride, offset_bytes // dtype.itemsize)


class _ExternKernels:
    """Library calls: with `out=` they only take workspace, else they return new (fake) tensors."""

    def __init__(self, original: Any, spend: Spend) -> None:
        self._original = original
        self._spend = spend

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel: Callable[..., Any] = getattr(self._original, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if "out" not in kwargs:
                return kernel(*args, **kwargs)
            self._spend(kernel, args, kwargs)
            return kwargs["out"]

        return call


class _Cuda:
    """`torch.cuda` for a wrapper: it knows the current device, and leaves the real one alone."""

    def __init__(self) -> None:
        self.index = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    @contextmanager
    def _DeviceGuard(self, index: int) -> Iterator[None]:
        previous, self.index = self.index, index
        try:
            yield
        finally:
            self.index = previous

    def set_device(self, index: int) -> None:
        self.index = index

    def synchronize(self, *args: Any) -> None:
        """Nothing runs, so there is nothing to wait for."""


class _Torch:
    """`torch` for a wrapper: as it is, but for `torch.cuda`."""

    def __init__(self, cuda: _Cuda) -> None:
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
