"""Joint graphs as Inductor hands them over, run and cut without compiling anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Interpreter, Node

from hilore_planner.passes import compat
from hilore_planner.passes.graph import JointGraph, normalise
from hilore_planner.passes.rewrite import Rewriter
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, build_units


def copied(gm: GraphModule) -> GraphModule:
    """The same nodes and values in a graph of its own, taking a flat list of inputs."""
    graph = Graph()
    output = graph.output(graph.graph_copy(gm.graph, {}))
    output.meta = dict(gm.graph.output_node().meta)
    return GraphModule(gm, graph)


class _CapturedError(Exception):
    """Ends a compilation once the joint graph is there."""


@dataclass(frozen=True, eq=False)
class Traced:
    """One joint graph, untouched, with what is needed to normalise a copy of it."""

    gm: GraphModule
    num_forward_outputs: int
    static_input_indices: tuple[int, ...]
    primals: tuple[Any, ...]
    """The real inputs the graph was traced with, in the graph's order."""

    def joint(self) -> JointGraph:
        """A normalised copy; rewriting it leaves this one as it is."""
        return normalise(
            copied(self.gm),
            num_forward_outputs=self.num_forward_outputs,
            static_input_indices=self.static_input_indices,
        )

    def units(self, *, small_bytes: int = 0) -> RecoveryGraph:
        joint = self.joint()
        return build_units(joint, build_schedule(joint), small_bytes=small_bytes)

    def tangents(self) -> list[torch.Tensor]:
        """Incoming gradients: of every forward output that has one, drawn once and for all."""
        generator = torch.Generator().manual_seed(7)
        return [
            torch.randn(_shape(node), generator=generator, dtype=torch.float64).to(
                node.meta["val"].dtype
            )
            for node in self.gm.graph.nodes
            if node.op == "placeholder" and compat.is_tangent(node)
        ]

    @cached_property
    def expected(self) -> tuple[list[Any], list[Any]]:
        """Outputs and gradients of the joint graph as it was traced."""
        given = [*self.primals, *self.tangents()]
        outputs = list(Interpreter(self.gm).run(*given, enable_io_processing=False))
        return outputs[: self.num_forward_outputs], outputs[self.num_forward_outputs :]


def _shape(node: Node) -> list[int]:
    return [compat.hint(size) for size in node.meta["val"].shape]


@dataclass(frozen=True, slots=True)
class Cut:
    """A forward and a backward graph."""

    forward: GraphModule
    backward: GraphModule
    saved: tuple[Node, ...]
    num_forward_outputs: int

    def kept(self) -> list[str]:
        """Names of what the forward hands over."""
        outputs = next(n for n in self.forward.graph.nodes if n.op == "output").args[0]
        return [node.name for node in outputs[self.num_forward_outputs :]]

    def run(self, traced: Traced) -> tuple[list[Any], list[Any]]:
        """Outputs and gradients, handed over by name as the runtime does by place."""
        forward = Interpreter(self.forward)
        values = list(forward.run(*traced.primals, enable_io_processing=False))
        split = self.num_forward_outputs
        at_hand = dict(zip(self.kept(), values[split:], strict=True))
        tangents = iter(traced.tangents())
        inputs = [
            at_hand[node.name] if node.name in at_hand else next(tangents)
            for node in self.backward.graph.nodes
            if node.op == "placeholder"
        ]
        gradients = Interpreter(self.backward).run(*inputs, enable_io_processing=False)
        return values[:split], list(gradients)


def cut(graph: RecoveryGraph, placement: Mapping[str, str]) -> Cut:
    """Rewrite a graph in place for a placement and cut it, as the partitioner does."""
    joint = graph.joint
    saved = Rewriter(graph, placement).run()
    forward, backward = compat.extract_forward_backward(
        joint.gm,
        saved,
        num_forward_outputs=joint.num_forward_outputs,
        static_input_indices=joint.static_input_indices,
    )
    return Cut(forward, backward, tuple(saved), joint.num_forward_outputs)


def trace_update(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> Traced:
    """The joint graph of ``function``, after Inductor's own joint passes."""
    found: list[Traced] = []
    primals: list[Any] = []

    class Capture(compat.CustomPartitionerFn):
        def uuid(self) -> str:
            return "tests: capture"

        def __call__(
            self, gm: GraphModule, joint_inputs: Sequence[object], **keywords: Any
        ) -> tuple[GraphModule, GraphModule]:
            found.append(
                Traced(
                    copied(gm),
                    keywords["num_fwd_outputs"],
                    tuple(keywords.get("static_lifetime_input_indices") or ()),
                    tuple(primals),
                )
            )
            raise _CapturedError

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        primals[:] = [
            x.detach().clone() if isinstance(x, torch.Tensor) else compat.hint(x)
            for x in example_inputs
        ]
        capture = Capture()
        patches = {
            "custom_partitioner_fn": capture,
            "fx_graph_cache": False,
        }
        try:
            compat.compile_graph(gm, example_inputs, patches)
        except Exception as error:
            if not found:
                raise
            del error
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    torch._dynamo.reset()
    (traced,) = found
    return traced


def module_update(model: nn.Module, *inputs: Any, dynamic: bool | None = None) -> Traced:
    """The joint graph of a module."""
    return trace_update(model, *inputs, dynamic=dynamic)
