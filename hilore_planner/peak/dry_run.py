"""Run a generated wrapper for accounting only.

The wrapper's own code is run, with other globals: allocations return fake tensors that a ledger
follows, generated kernels do nothing, library calls that write into given buffers do nothing, and
whatever returns new tensors runs on fake ones, so that sizes, reuse, aliasing and every `del` come
out as at run time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from hilore_planner.errors import RegionError
from hilore_planner.peak.allocator import Allocator, ExactAllocator, caching_allocator
from hilore_planner.peak.ledger import Ledger
from hilore_planner.peak.namespace import rebind_call
from hilore_planner.peak.timeline import TensorSpec, Timeline
from hilore_planner.peak.wrapper import InputSpec, Wrapper

Value = torch.Tensor | int | float | None


class Workspaces(Protocol):
    """Knows what operations take while they run, beyond inputs and outputs."""

    def transient_bytes(
        self, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """Bytes for one call; tensors among the arguments are fake."""


def allocator_for(device: torch.device) -> Allocator:
    """The model of the allocator that serves a device, as the environment configures it.

    Raises:
        HiloreError: it is configured in a way that is not modelled.
    """
    if device.type != "cuda":
        return ExactAllocator()
    settings = (
        os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    )
    return caching_allocator(",".join(settings))


def dry_run(
    wrapper: Wrapper,
    inputs: Sequence[InputSpec],
    *,
    device: torch.device | str,
    allocator: Allocator | None = None,
    workspaces: Workspaces | None = None,
) -> Timeline:
    """Predict the allocations of one call.

    Args:
        wrapper: the generated wrapper.
        inputs: as many as the wrapper takes; sizes as plain ints.
        device: the device whose memory is counted.
        allocator: its allocator's model; None: a fresh one of the device's kind.
        workspaces: what operations take while they run; None: nothing is counted for that.

    Raises:
        RegionError: the wrapper cannot be run dry (a size depends on data, an unknown construct,
            inputs that do not fit); the message names the line.
    """
    device = torch.device(device)
    ledger = Ledger(device, allocator or allocator_for(device))
    with FakeTensorMode() as mode, torch.no_grad():
        runner = DryRunner(mode, ledger, workspaces)
        values = materialise(inputs, wrapper.input_names, ledger)
        kept = [value for value, spec in zip(values, inputs, strict=True) if _is_kept(spec)]
        start = len(ledger)
        outputs = runner.run(wrapper, values)
        timeline = summarise(ledger, start, output_specs(outputs))
        kept.clear()
    return timeline


def summarise(ledger: Ledger, start: int, outputs: tuple[InputSpec, ...]) -> Timeline:
    """The timeline of what the ledger recorded from its `start`-th entry on, until there were the `outputs`."""
    totals = ledger.totals()
    peak = ledger.peak_position(start)
    line = ledger.line_at(peak) if peak > start else 0
    launches, last_bytes = ledger.launches(start)
    return Timeline(
        moments=ledger.moments(start),
        start_bytes=totals[start],
        peak_bytes=totals[peak],
        peak_line=line,
        peak_label=ledger.text(line),
        owners=ledger.owners(peak),
        end_bytes=totals[-1],
        reserved_bytes=ledger.allocator.reserved_bytes,
        outputs=outputs,
        launches=launches,
        last_bytes=last_bytes,
    )


def output_specs(outputs: Sequence[Value]) -> tuple[InputSpec, ...]:
    """What describes a call's outputs, those on one storage in one group."""
    groups: dict[int, str] = {}

    def described(position: int, value: Value) -> InputSpec:
        if not isinstance(value, torch.Tensor):
            return value
        key = value.untyped_storage()._cdata
        return TensorSpec.of(value, alias_group=groups.setdefault(key, f"output_{position}"))

    return tuple(described(position, value) for position, value in enumerate(outputs))


def _is_kept(spec: InputSpec) -> bool:
    return isinstance(spec, TensorSpec) and spec.is_kept


def materialise(inputs: Sequence[InputSpec], names: Sequence[str], ledger: Ledger) -> list[Value]:
    """Fake tensors for the specs, counted by the ledger; to be called in a fake mode."""
    if len(inputs) != len(names):
        raise RegionError(f"the wrapper takes {len(names)} inputs, but {len(inputs)} were given")
    bases: dict[str, torch.Tensor] = {}
    values: list[Value] = []
    for spec, name in zip(inputs, names, strict=True):
        if not isinstance(spec, TensorSpec):
            values.append(spec)
            continue
        group = spec.alias_group or name
        if group not in bases:
            nbytes = spec.reach_bytes if spec.storage_bytes is None else spec.storage_bytes
            numel = -(-nbytes // spec.dtype.itemsize)
            bases[group] = torch.empty_strided((numel,), (1,), dtype=spec.dtype, device=spec.device)
            ledger.track(bases[group], name)
        base = bases[group]
        flat = base if base.dtype == spec.dtype else base.view(spec.dtype)
        values.append(torch.as_strided(flat, spec.shape, spec.stride, spec.storage_offset))
    return values


@dataclass(slots=True)
class DryRunner:
    """Runs wrappers on fake tensors against one ledger; to be used inside `mode`."""

    mode: FakeTensorMode
    ledger: Ledger
    workspaces: Workspaces | None = None

    def run(self, wrapper: Wrapper, values: list[Value]) -> tuple[Value, ...]:
        """One call; `values` is emptied, as a boxed call does."""
        self.ledger.source = wrapper.path
        call = rebind_call(wrapper, self.mode, self.ledger, self.spend)
        with _Recorder(self), _located_errors(self.ledger, wrapper):
            return tuple(call(values))

    def spend(self, op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Count what one operation takes while it runs."""
        if self.workspaces is not None:
            transient_bytes = self.workspaces.transient_bytes(op, args, kwargs)
            self.ledger.spend(transient_bytes, f"workspace of {op}")
        if not makes_nothing(op):
            self.ledger.launch(_short_name(op))


def makes_nothing(op: Callable[..., Any]) -> bool:
    """Whether an operation only looks at memory, or only allocates it."""
    if not isinstance(op, torch._ops.OpOverload):
        return False
    is_allocation = op.namespace == "aten" and op._opname.startswith("empty")
    return op.is_view or is_allocation or op.namespace.startswith("prim")


def _short_name(op: Callable[..., Any]) -> str:
    return op._opname if isinstance(op, torch._ops.OpOverload) else op.__name__


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the ledger about every storage an operation makes."""

    supports_higher_order_operators = True

    def __init__(self, runner: DryRunner) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runner = runner

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        outputs = tree_map_only(torch.Tensor, self._faked, func(*args, **(kwargs or {})))
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor):
                self.runner.ledger.track(leaf)
        self.runner.spend(*_inner(func, args), kwargs or {})
        return outputs

    def _faked(self, value: torch.Tensor) -> torch.Tensor:
        """The state of a random generator comes out real."""
        return value if isinstance(value, FakeTensor) else self.runner.mode.from_tensor(value)


def _inner(
    func: Callable[..., Any], args: Sequence[Any]
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The operation that a random generator's state is saved or set for, in a checkpointed program; others as is."""
    if not isinstance(func, torch._ops.HigherOrderOperator):
        return func, args
    index = next(i for i, arg in enumerate(args) if isinstance(arg, torch._ops.OpOverload))
    return args[index], args[index + 1 :]


@contextlib.contextmanager
def _located_errors(ledger: Ledger, wrapper: Wrapper) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == wrapper.path:
                line = trace.tb_lineno
            trace = trace.tb_next
        raise RegionError(
            f"cannot run {wrapper.path} dry; line {line}: {ledger.text(line)!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
