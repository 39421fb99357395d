from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch._inductor.async_compile import AsyncCompile


def _never_run(*_: Any) -> None:
    raise AssertionError("this kernel was not compiled: the test looks at the wrapper only")


@pytest.fixture
def no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Inductor writes wrappers, but compiles no kernel; nothing of it reaches a cache."""
    folder: Path = tmp_path_factory.getbasetemp() / "without-kernels"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))

    def pybinding(self: AsyncCompile, *_: Any, **__: Any) -> Callable[..., None]:
        return _never_run

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", pybinding)
    with (
        inductor.patch({"fx_graph_cache": False, "compile_threads": 1, "cpp.simdlen": 1}),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
    torch._dynamo.reset()
