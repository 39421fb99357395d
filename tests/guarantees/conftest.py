from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture
def no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Inductor writes wrappers, but compiles no kernel; nothing of it reaches a cache.

    The wrappers still run, with zeros for results: they allocate and free what they would with kernels.
    """
    folder: Path = tmp_path_factory.getbasetemp() / "without-kernels"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))

    def pybinding(self: AsyncCompile, argtypes: list[str], _: str) -> Callable[..., None]:
        return _zeroing(argtypes)

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", pybinding)
    with (
        inductor.patch({"fx_graph_cache": False, "compile_threads": 1, "cpp.simdlen": 1}),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
    torch._dynamo.reset()
