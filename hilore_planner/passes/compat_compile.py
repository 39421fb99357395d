"""Compiling with Inductor: seeing what it compiles, and compiling beside it. The part of :mod:`compat` that does so."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import tracing
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

WHOLE_COPIES = {"realize_opcount_threshold": 128, "comprehensive_padding": False}
"""Inductor settings for graphs in which values are encoded or decoded. That takes more than the 30 operations after
which Inductor would write what it has so far, a buffer as large as the value; at 128 it must, for its own recursion.
Rows of statistics that it pads would keep it from reading a group once for all its figures."""

CompiledGraphObserver = Callable[[Callable[..., Any], Sequence[Any], bool], None]
"""Gets a compiled graph's wrapper function, its (fake) example inputs, and if it is a backward."""

_compiled_graph_observers: list[CompiledGraphObserver] = []
_observers_lock = threading.Lock()


def compile_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any], patches: dict[str, Any]) -> Any:
    """Compile a Dynamo graph with Inductor, its backward too, so that errors surface here."""
    import torch._functorch.config as functorch_config

    with functorch_config.patch(force_non_lazy_backward_lowering=True):
        return compile_fx(gm, inputs, config_patches=patches)


@contextlib.contextmanager
def observe_compiled_graphs(observer: CompiledGraphObserver) -> Iterator[None]:
    """Call ``observer`` for every graph Inductor compiles, or loads from a cache, meanwhile.

    ``CompiledFxGraph.post_compile`` is what both ways share (2.11 and 2.13); when it begins, the
    callable is still the bare ``call`` of the generated module. Observers of several contexts, also of
    several threads, all see every graph: a CUDA backward is compiled on autograd's thread. Those of
    :func:`compile_alone` they do not see.
    """
    with _observers_lock:
        _compiled_graph_observers.append(observer)
        if len(_compiled_graph_observers) == 1:
            CompiledFxGraph.post_compile = _observed_post_compile  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _observers_lock:
            _compiled_graph_observers.remove(observer)
            if not _compiled_graph_observers:
                CompiledFxGraph.post_compile = _post_compile  # type: ignore[method-assign]


_post_compile = CompiledFxGraph.post_compile


def _observed_post_compile(
    self: CompiledFxGraph, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any
) -> None:
    if self.current_callable is not None and not _is_alone.get():
        for observer in tuple(_compiled_graph_observers):
            observer(self.current_callable, example_inputs, bool(graph_kwargs["is_backward"]))
    _post_compile(self, example_inputs, constants, graph_kwargs)


_is_alone: contextvars.ContextVar[bool] = contextvars.ContextVar("is_alone", default=False)
_Kernels = tuple[AsyncCompile, dict[str, Any]]
_awaited: contextvars.ContextVar[list[_Kernels] | None] = contextvars.ContextVar(
    "awaited", default=None
)
_wait = AsyncCompile.wait


def _wait_later(self: AsyncCompile, scope: dict[str, Any]) -> None:
    kernels = _awaited.get()
    if kernels is None:
        _wait(self, scope)
    else:
        kernels.append((self, scope))


@dataclass(frozen=True, slots=True)
class Alone:
    """A graph that was compiled by itself."""

    _compiled: Callable[[list[Any]], Any]
    _kernels: list[_Kernels]

    def wait(self) -> None:
        """Until other processes have compiled its kernels; raises what went wrong there."""
        while self._kernels:
            _wait(*self._kernels.pop())

    def __call__(self, given: list[Any]) -> Any:
        """Run it, once its kernels are there."""
        self.wait()
        return self._compiled(given)


def compile_alone(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Alone:
    """Compile a graph of ATen ops that returns a tuple, also while another graph is being compiled.

    Kernels are compiled by other processes meanwhile. ``inputs`` are real tensors of the layout it will be called with.
    """
    kernels: list[_Kernels] = []
    mode = FakeTensorMode()
    alone, awaited = _is_alone.set(True), _awaited.set(kernels)
    AsyncCompile.wait = _wait_later  # type: ignore[method-assign]
    try:
        # A graph for the cache would have to have its kernels.
        settings = config.patch(fx_graph_cache=False)
        with _disable_current_modes(), tracing(None), V.set_fake_mode(mode), settings:
            fakes = [mode.from_tensor(value) for value in inputs]
            compiled: Any = compile_fx_inner(gm, fakes, cudagraphs=BoxedBool(False))
    finally:
        AsyncCompile.wait = _wait  # type: ignore[method-assign]
        _awaited.reset(awaited)
        _is_alone.reset(alone)
    return Alone(compiled, kernels)


def start_compilers() -> None:
    """Start the processes that compile kernels and wait until they are there, where there are any."""
    AsyncCompile.wait_pool_ready()


def rounds_like_eager() -> bool:
    """Whether Inductor is asked to round where eager execution does: ``emulate_precision_casts``."""
    return bool(config.emulate_precision_casts)
