"""The joint graph of an update, as plans see it, and the inputs it is given for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hilore_planner.errors import HiloreError, RegionError
from hilore_planner.partitioner import CutSettings, Modules, prepare, unplannable
from hilore_planner.passes import compat
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.ops import is_random, op_name, tensor
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, build_units

Inputs = tuple[Any, ...]
"""What a joint graph's primals stand for: parameters, buffers and the batch."""


class _CapturedError(Exception):
    """Ends a compilation or a call once what was wanted is there."""


class _Capture(compat.CustomPartitionerFn):
    """Stands where plans are made, and keeps the graph instead."""

    def __init__(self, settings: CutSettings) -> None:
        self._settings = settings
        self.graph: RecoveryGraph | None = None
        self.error: HiloreError | None = None

    def uuid(self) -> str:
        """Part of Inductor's cache key."""
        return "hilore: capture"

    def __deepcopy__(self, memo: dict[int, Any]) -> _Capture:
        return self

    def __call__(self, gm: GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Modules:
        """Keep the region's units, then end the compilation."""
        static = tuple(keywords.get("static_lifetime_input_indices") or ())
        outputs: int = keywords["num_fwd_outputs"]
        try:
            if reason := unplannable(gm, joint_inputs, outputs):
                raise RegionError(f"the update cannot be calibrated: {reason}")
            joint, _ = prepare(
                gm, self._settings, num_forward_outputs=outputs, static_input_indices=static
            )
            self.graph = build_units(joint, build_schedule(joint))
        except HiloreError as error:
            self.error = error
        raise _CapturedError


@dataclass(slots=True)
class CapturedUpdate:
    """An update that yields its graph and inputs instead of running.

    ``update`` must be one graph with a scalar loss: no graph breaks.
    """

    update: Callable[..., Any]
    settings: CutSettings
    _graph: RecoveryGraph | None = None
    _inputs: Inputs = ()
    _traced: Callable[..., Any] | None = field(default=None, init=False)

    @property
    def graph(self) -> RecoveryGraph:
        """Units of the joint graph; there after the first :meth:`inputs`."""
        assert self._graph is not None
        return self._graph

    def inputs(self, batch: Sequence[Any]) -> Inputs:
        """What the graph's primals are for ``batch``.

        Raises:
            RegionError: the update has graph breaks, no scalar loss, random values, or another graph for this batch.
        """
        if self._traced is None:
            self._traced = torch.compile(self.update, backend=self._backend, dynamic=False)
        self._inputs = ()
        try:
            self._traced(*batch)
        except _CapturedError:
            return self._inputs
        raise RegionError("the update cannot be calibrated: nothing in it has a gradient")

    def _backend(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        needs_gradient = torch.is_grad_enabled() and any(
            isinstance(value, Tensor) and value.requires_grad for value in example_inputs
        )
        if not needs_gradient:
            return gm.forward
        try:
            if self._graph is not None:
                raise RegionError(
                    "the update compiles to another graph for a later batch; calibrate with batches of one shape"
                )
            self._graph = _capture(gm, example_inputs, self.settings)
        except HiloreError as error:
            return _raiser(error)
        return self._collect

    def _collect(self, *inputs: Any) -> Any:
        self._inputs = inputs
        raise _CapturedError


def _raiser(error: HiloreError) -> Callable[..., Any]:
    def raise_error(*_: Any) -> Any:
        raise error

    return raise_error


def _capture(gm: GraphModule, inputs: Sequence[Any], settings: CutSettings) -> RecoveryGraph:
    capture = _Capture(settings)
    patches = {"custom_partitioner_fn": capture, "fx_graph_cache": False}
    try:
        compat.compile_graph(gm, inputs, patches)
    except Exception:  # Inductor wraps what ends it
        if capture.error is not None:
            raise capture.error from None
        if capture.graph is None:
            raise
    assert capture.graph is not None
    _check(capture.graph, len(inputs))
    return capture.graph


def _check(graph: RecoveryGraph, inputs: int) -> None:
    joint = graph.joint
    if len(joint.primals) != inputs:
        raise RegionError(
            f"the update cannot be calibrated: its graph has {len(joint.primals)} inputs for {inputs} given "
            "(random state, or inputs that share memory)"
        )
    tangents = [tensor(node) for node in joint.tangents]
    if len(tangents) != 1 or tangents[0] is None or tangents[0].dim() != 0:
        shapes = [tuple(value.shape) for value in tangents if value is not None]
        raise RegionError(
            f"the update has outputs of shapes {shapes} that gradients come in for; accepted: one graph whose "
            "only differentiable output is the scalar loss"
        )
    for node in joint.forward:
        if is_random(node) or "inductor_seed" in op_name(node):
            raise RegionError(
                f"the update draws random numbers ({op_name(node)} at {source_line(node) or node.name}); "
                "calibrate it with dropout off"
            )
