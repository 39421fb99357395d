"""Chains that run as one program give what their ops give one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule, Node

from hilore_planner.calibration.fused import LEAST_SPARED_BYTES, FusedChain, fused_chains
from hilore_planner.calibration.interpret import Change, JointInterpreter, reads_of
from hilore_planner.calibration.round_trip import change_by
from hilore_planner.passes import compat
from hilore_planner.passes.codecs import codec_for
from hilore_planner.passes.units import RecoveryGraph
from tests.passes.joint import Traced, trace_update
from tests.passes.programs import Stack, seeded

Made = list[GraphModule]


_no_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def _traced(device: str) -> Traced:
    """Two equal layers in float32; 2 x 32 tokens."""
    values = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1))
    return trace_update(seeded(Stack).to(device), values.to(device))


@pytest.fixture(scope="module")
def stack() -> Traced:
    return _traced("cpu")


def _op_by_op(made: Made) -> Callable[[GraphModule, Sequence[Tensor]], Callable[..., list[Tensor]]]:
    """Stands for a compiler: runs a program's ops, and returns values that lie in memory in another order."""

    def compiled(program: GraphModule, _: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
        made.append(program)
        return lambda values: [_turned(value) for value in program(*values)]

    return compiled


def _fused(plain: JointInterpreter, chains: Mapping[Node, FusedChain]) -> JointInterpreter:
    return replace(plain, chains=chains, reads=reads_of(plain.joint, chains))


def _turned(value: Tensor) -> Tensor:
    return value.mT.contiguous().mT if value.dim() > 1 else value


def _changes(data: st.DataObject, graph: RecoveryGraph, names: Sequence[str]) -> dict[str, Change]:
    def change(name: str) -> Change:
        if graph.units[name].can_recompute and data.draw(st.booleans()):
            return "recompute"
        return change_by(codec_for(graph.units[name], "int8"))

    return {name: change(name) for name in data.draw(st.sets(st.sampled_from(names), min_size=1))}


@settings(max_examples=10)
@given(data=st.data())
def test_chains_change_no_gradient(stack: Traced, data: st.DataObject) -> None:
    graph = stack.units()
    made: Made = []
    plain = JointInterpreter.of(graph)
    fused = _fused(plain, fused_chains(graph, plain.at_hand, _op_by_op(made), 0))
    assert made
    values = plain.forward(stack.primals)
    names = [name for name, node in plain.makers.items() if values[node].is_floating_point()]
    changes = _changes(data, graph, names)
    exact, expected = plain.reference(values), dict(plain.gradients(values, changes))
    values = fused.forward(stack.primals)
    again, found = fused.reference(values), dict(fused.gradients(values, changes))
    assert again.keys() == exact.keys()
    # Of a chain all outputs are made again where one is altered.
    assert found.keys() >= expected.keys()
    for one, other in ((exact, again), (exact | expected, found)):
        for index, gradient in other.items():  # sums over other layouts are in another order
            torch.testing.assert_close(gradient, one[index], rtol=1e-5, atol=1e-7)


def test_equal_layers_share_programs(stack: Traced) -> None:
    made: Made = []
    graph = stack.units()
    chains = fused_chains(graph, (), _op_by_op(made), 0)
    assert len(made) < len(set(chains.values()))
    assert not fused_chains(graph, (), _op_by_op(made), LEAST_SPARED_BYTES)


@pytest.mark.compat
@pytest.mark.parametrize(
    ("device", "most"), [("cpu", 1), pytest.param("cuda", 9, marks=[pytest.mark.gpu, _no_device])]
)
def test_chains_compile(device: str, most: int) -> None:
    """On a CPU, where that takes long, the first of them."""
    traced = _traced(device)
    graph = traced.units()
    plain, made = JointInterpreter.of(graph), Made()

    def compiled(program: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
        made.append(program)
        compiler = compat.compile_alone if len(made) <= most else _op_by_op([])
        return compiler(program, inputs)

    fused = _fused(plain, fused_chains(graph, plain.at_hand, compiled, 0))
    assert made
    exact = plain.reference(plain.forward(traced.primals))
    found = fused.reference(fused.forward(traced.primals))
    for index, gradient in exact.items():
        torch.testing.assert_close(found[index], gradient)
