"""Compiling without kernels: for tests that ask what compiled code allocates, and not what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch._inductor.async_compile import AsyncCompile


def _zeroing(argtypes: list[str]) -> Callable[..., None]:
    """A kernel that fills what it would write with zeros, which are safe as indices; it allocates nothing."""

    def kernel(*arguments: Any) -> None:
        for kind, argument in zip(argtypes, arguments, strict=True):
            if isinstance(argument, torch.Tensor) and not kind.startswith("const "):
                argument.zero_()

    return kernel


@contextmanager
def without_kernels(folder: Path) -> Iterator[None]:
    """Inductor writes wrappers, into ``folder``, but compiles no kernel; nothing of it reaches a cache.

    The wrappers still run, with zeros for results: they allocate and free what they would with kernels.
    """

    def pybinding(self: AsyncCompile, argtypes: list[str], _: str) -> Callable[..., None]:
        return _zeroing(argtypes)

    with (
        pytest.MonkeyPatch.context() as patch,
        inductor.patch({"fx_graph_cache": False, "compile_threads": 1, "cpp.simdlen": 1}),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        patch.setattr(AsyncCompile, "cpp_pybinding", pybinding)
        yield
    torch._dynamo.reset()
