"""The joint graph of an update, without compiling or running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import takewhile
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from hilore_planner.errors import RegionError
from hilore_planner.offline.attention import set_attention
from hilore_planner.offline.gpu_form import as_on_gpu
from hilore_planner.partitioner import unplannable
from hilore_planner.passes import compat
from hilore_planner.passes.devices import AttentionKernel
from hilore_planner.planning import region_name

Update = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Capture:
    """What Inductor would hand to the backend's partitioner.

    Attributes:
        gm: the joint graph, after Inductor's own passes over it.
        inputs: of the graph: parameters, buffers, batch; fake tensors.
    """

    gm: GraphModule
    num_forward_outputs: int
    static_input_indices: tuple[int, ...]
    inputs: tuple[Any, ...]
    region: str


class _CapturedError(Exception):
    """Ends tracing once the joint graph is there; it never leaves this module."""


@dataclass(slots=True)
class _Capturer(compat.CustomPartitionerFn):
    """Takes a joint graph from Inductor and ends its work there."""

    attention: AttentionKernel
    patches: dict[str, Any]
    found: Capture | None = None
    reason: str = ""
    inputs: tuple[Any, ...] = ()
    region: str = ""

    def uuid(self) -> None:
        """No part of a cache key: caches are off."""

    def backend(self, gm: GraphModule, values: Sequence[Any]) -> Update:
        """What Dynamo hands its graph to."""
        self.inputs, self.region = tuple(values), region_name(gm)
        self.reason = _hopeless(values)
        if self.reason:
            return _stop
        set_attention(gm, self.attention)
        own = {"custom_partitioner_fn": self, "fx_graph_cache": False}
        try:
            compat.compile_graph(gm, values, self.patches | own)
        except Exception:
            if self.found is None and not self.reason:
                raise
        return _stop

    def __deepcopy__(self, memo: dict[int, Any]) -> _Capturer:
        return self

    def __call__(self, gm: GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Any:
        """Keep the outermost graph; graphs of nested regions come first and go to torch's own partitioner."""
        if not joint_inputs:
            return compat.default_partition(gm, joint_inputs, **keywords)
        static = tuple(keywords.get("static_lifetime_input_indices") or ())
        outputs: int = keywords["num_fwd_outputs"]
        self.reason = unplannable(gm, joint_inputs, outputs)
        if not self.reason:
            if self.attention != "cpu":
                as_on_gpu(gm)
            self.found = Capture(gm, outputs, static, self.inputs, self.region)
        raise _CapturedError


def capture(
    update: Update,
    inputs: Sequence[Any],
    *,
    attention: AttentionKernel = "cpu",
    inductor: Mapping[str, Any] | None = None,
) -> Capture:
    """Trace an update's forward and backward.

    Args:
        update: a function or module of tensors that returns what its backward starts from.
        inputs: what it would be called with: real tensors, or fake ones (as its parameters then are).
        attention: the attention operator to trace, where the device that is planned for is not the inputs'.
        inductor: Inductor settings.

    Raises:
        RegionError: the update does not compile as one graph, or has no backward; the message says why.
    """
    capturer = _Capturer(attention, dict(inductor or {}))
    traced = torch.compile(_fresh(update), backend=capturer.backend, fullgraph=True, dynamic=False)
    try:
        with compat.fake_mode_of(inputs) or nullcontext(), torch.enable_grad():
            traced(*inputs)
    except _CapturedError:
        pass
    except compat.trace_errors() as error:
        raise RegionError(f"the update does not trace as one graph: {_reason(error)}") from error
    if capturer.found is None:
        reason = capturer.reason or "it calls no torch operation"
        raise RegionError(f"the update {capturer.region or update!r} has nothing to plan: {reason}")
    return capturer.found


def _hopeless(values: Sequence[Any]) -> str:
    """Why there is no use in tracing a graph with these inputs; empty where there is."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not any(tensor.requires_grad for tensor in tensors):
        return "none of its inputs and parameters requires a gradient"
    if any(tensor.device.type == "meta" for tensor in tensors):
        return (
            "it has tensors on the meta device, which Inductor folds away as constants; make them fake tensors on the "
            "CPU (torch._subclasses.FakeTensorMode)"
        )
    return ""


def _stop(*_: Any) -> Any:
    raise _CapturedError


def _fresh(update: Update) -> Update:
    """The same function with a code object of its own.

    Dynamo keeps what it compiled with the code; the caller's own compiled versions stay as they are, and what is
    captured here goes with the copy.
    """
    if isinstance(update, nn.Module):
        update = update.forward
    if isinstance(update, MethodType):
        function = _fresh(update.__func__)
        return MethodType(function, update.__self__)
    if not isinstance(update, FunctionType):
        return update
    copy = FunctionType(
        update.__code__.replace(),
        update.__globals__,
        update.__name__,
        update.__defaults__,
        update.__closure__,
    )
    copy.__kwdefaults__ = update.__kwdefaults__
    return copy


def _reason(error: BaseException) -> str:
    """What Dynamo says first: the reason, before its hints and the stack."""
    lines = (line.strip() for line in str(error).splitlines() if line.strip())
    return " ".join(
        takewhile(lambda line: not line.startswith(("Hint:", "Developer", "from user")), lines)
    )
