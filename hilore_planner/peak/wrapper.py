"""The Python wrappers Inductor generates: how to get hold of them.

A wrapper is the module with `call(args)` that Inductor writes for each compiled graph: it allocates
buffers, launches kernels, and drops buffers after their last use. It is there whether the graph was
just compiled or came from a cache.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

from hilore_planner.errors import RegionError
from hilore_planner.passes.compat import hint, observe_compiled_graphs
from hilore_planner.peak.timeline import TensorSpec

InputSpec = TensorSpec | int | float | None
"""A tensor; a size or number (a plain Python number at run time); or something opaque (None)."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """One generated wrapper.

    Attributes:
        call: the wrapper's entry, a function or a bound method of one list argument.
        is_backward: whether it computes a backward.
        example_inputs: what it was compiled for, symbolic sizes at their hints. After a load from a
            cache, a backward's are the forward's.
    """

    call: Callable[[list[Any]], Any]
    is_backward: bool
    example_inputs: tuple[InputSpec, ...]
    partitions: tuple[Callable[..., Any], ...] = field(init=False, repr=False)
    """Functions that the entry calls as parts of its graph; none where it is whole."""

    def __post_init__(self) -> None:
        # Kept from here on: a compiled graph that dies takes its runner's, also where another one that was loaded from
        # the cache has the same runner.
        runner = getattr(self.call, "__self__", None)
        object.__setattr__(self, "partitions", tuple(getattr(runner, "partitions", ())))

    def entry_function(self) -> FunctionType:
        """The plain function behind `call`."""
        entry: object = self.call
        function: object = entry.__func__ if isinstance(entry, MethodType) else entry
        if not isinstance(function, FunctionType):
            raise RegionError(
                f"the compiled graph's entry is {entry!r}; only a Python wrapper can be run dry "
                "(Inductor setting cpp_wrapper must be False)"
            )
        return function

    @property
    def path(self) -> str:
        """The wrapper's file."""
        return self.entry_function().__code__.co_filename

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names the wrapper gives its inputs, in order (`primals_1`, `tangents_1`, ...)."""
        code = self.entry_function().__code__
        return _input_names(code.co_filename, code.co_firstlineno)

    def example_inputs_of_harness(self) -> dict[str, TensorSpec]:
        """Tensor inputs by name as Inductor's benchmark harness makes them, at the hinted sizes.

        The harness is part of the file, so it is there after a load from a cache too; empty where the
        Inductor setting `benchmark_harness` is off.
        """
        return dict(_harness_inputs(Path(self.path).read_text()))


def _harness_inputs(source: str) -> Iterator[tuple[str, TensorSpec]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(
                [ast.Name(name)],
                ast.Call(
                    ast.Name("rand_strided"),
                    [shape, stride],
                    [
                        ast.keyword("device", ast.Constant(str(device))),
                        ast.keyword("dtype", ast.Attribute(ast.Name("torch"), dtype)),
                    ],
                ),
            ):
                yield (
                    name,
                    TensorSpec(
                        ast.literal_eval(shape),
                        ast.literal_eval(stride),
                        getattr(torch, dtype),
                        torch.device(device),
                    ),
                )


@cache
def _input_names(path: str, line: int) -> tuple[str, ...]:
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.FunctionDef) and node.lineno == line:
            return _unpacked_names(node.body[0])
    raise RegionError(f"no function begins at line {line} of the generated file {path}")


def _unpacked_names(statement: ast.stmt) -> tuple[str, ...]:
    """The names of `a, b, = args`; none where the graph takes no inputs."""
    match statement:
        case ast.Assign([ast.Tuple(names)], ast.Name("args")):
            return tuple(ast.unparse(name) for name in names)
    return ()


@contextmanager
def capture_wrappers() -> Iterator[list[Wrapper]]:
    """Collect the wrapper of every graph compiled, or loaded from a cache, inside the context.

    Compilation itself is not altered. A backward may be compiled only when it first runs: keep the
    context open until then. The list grows in the order of compilation.
    """
    wrappers: list[Wrapper] = []

    def observe(call: Callable[..., Any], inputs: Sequence[Any], is_backward: bool) -> None:
        wrappers.append(Wrapper(call, is_backward, tuple(map(_input_spec, inputs))))

    with observe_compiled_graphs(observe):
        yield wrappers


def _input_spec(value: object) -> InputSpec:
    if isinstance(value, torch.SymInt):
        return hint(value)
    if isinstance(value, int | float):
        return value
    if not isinstance(value, torch.Tensor):
        return None
    storage = value.untyped_storage()
    return TensorSpec(
        tuple(map(hint, value.shape)),
        tuple(map(hint, value.stride())),
        value.dtype,
        value.device,
        hint(value.storage_offset()),
        hint(storage.nbytes()),
        f"storage_{storage._cdata:x}",
    )
