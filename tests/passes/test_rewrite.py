"""Rewritten graphs, run eagerly, against the joint graph they come from."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hilore_planner.codec_names import KNOWN_CODECS
from hilore_planner.errors import PlanFileError
from hilore_planner.passes import compat
from hilore_planner.passes.codecs import codec_named
from hilore_planner.passes.marks import MADE
from hilore_planner.passes.ops import OpKind, kind_of, work_readers
from hilore_planner.passes.rewrite import Rewriter
from hilore_planner.passes.schedule import cut_steps
from hilore_planner.solvers import replay
from tests.backend.models import Running
from tests.passes.joint import Cut, Traced, cut, trace_update
from tests.passes.placements import place, placements, prefer, problem_of

pytestmark = pytest.mark.compat


def _assert_equal(cut_graphs: Cut, traced: Traced) -> None:
    """Same outputs and gradients, bit for bit."""
    for found, expected in zip(cut_graphs.run(traced), traced.expected, strict=True):
        assert [value is None for value in found] == [value is None for value in expected]
        for one, other in zip(found, expected, strict=True):
            assert one is None or torch.equal(one, other)


def _error(cut_graphs: Cut, traced: Traced) -> float:
    """Relative error of the whole gradient; the outputs must be equal bit for bit."""
    outputs, gradients = cut_graphs.run(traced)
    expected_outputs, expected = traced.expected
    assert all(map(torch.equal, outputs, expected_outputs))
    pairs = [(g, e) for g, e in zip(gradients, expected, strict=True) if g is not None]
    wrong = sum(float((g - e).double().square().sum()) for g, e in pairs)
    whole = sum(float(e.double().square().sum()) for _, e in pairs)
    return float((wrong / whole) ** 0.5)


@settings(max_examples=20)
@given(data=st.data())
def test_any_exact_placement_gives_the_very_same_gradients(
    block: Traced, data: st.DataObject
) -> None:
    graph = block.units()
    problem = problem_of(graph)
    placement = data.draw(placements(problem, is_exact=True))
    replay(problem, placement)
    _assert_equal(cut(graph, placement), block)


@settings(max_examples=12)
@given(data=st.data())
def test_any_compressed_placement_keeps_the_forward_and_its_risk(
    block_float32: Traced, data: st.DataObject
) -> None:
    graph = block_float32.units()
    problem = problem_of(graph)
    placement = data.draw(placements(problem, is_exact=False))
    risk = replay(problem, placement).risk
    error = _error(cut(graph, placement), block_float32)
    # 1e-6: recomputing in float32 is exact here, adding up the norm is not.
    assert error <= risk**0.5 + 1e-6


@settings(max_examples=10)
@given(data=st.data())
def test_the_forward_hands_over_what_the_placement_says(
    block_float32: Traced, data: st.DataObject
) -> None:
    graph = block_float32.units()
    problem = problem_of(graph)
    placement = data.draw(placements(problem, is_exact=False))
    makers = {unit.maker.name: name for name, unit in graph.units.items()}
    stored = {
        compat.storage_key(graph.units[name].maker)
        for name, action in placement.items()
        if action == "store"
    }
    expected = sum(
        codec_named(a.removeprefix("compress:")).num_parts
        for a in placement.values()
        if a.startswith("compress:")
    )
    result = cut(graph, placement)
    forward = {node.name: node for node in result.forward.graph.nodes}
    parts = 0
    for name in result.kept():
        node = forward[name]
        if node.op == "placeholder":
            continue
        if node.meta.get(MADE):
            parts += 1
            continue
        assert compat.storage_key(node) in stored, f"{name} of {makers.get(name)} is kept unasked"
        stored.discard(compat.storage_key(node))
    assert not stored
    assert parts == expected


def _sizes(kept: list[str], result: Cut) -> int:
    nodes = {node.name: node for node in result.forward.graph.nodes}
    values = [nodes[name].meta["val"] for name in kept if nodes[name].op != "placeholder"]
    return sum(value.numel() * value.element_size() for value in values)


@pytest.mark.parametrize(
    "wanted", ["store", "recompute", *(f"compress:{c}" for c in KNOWN_CODECS[:4])]
)
def test_what_is_handed_over_has_the_planned_bytes(block_float32: Traced, wanted: str) -> None:
    graph = block_float32.units()
    problem = problem_of(graph)
    placement = place(problem, prefer(wanted))
    assert wanted in placement.values()
    result = cut(graph, placement)
    assert _sizes(result.kept(), result) == replay(problem, placement).saved_bytes


def test_recomputing_everything_keeps_inputs_alone(block: Traced) -> None:
    graph = block.units()
    result = cut(graph, place(problem_of(graph), prefer("recompute")))
    assert {name.rstrip("0123456789") for name in result.kept()} == {"primals_"}
    _assert_equal(result, block)


@pytest.mark.parametrize("wanted", ["store", "recompute", "compress:int8"])
def test_every_kernel_runs_once_in_the_forward(block_float32: Traced, wanted: str) -> None:
    """Attention counts as random: dead-code elimination would leave its second run in the forward."""
    graph = block_float32.units()
    before = [n.target for n in graph.joint.forward if kind_of(n) is OpKind.EXTERN]
    result = cut(graph, place(problem_of(graph), prefer(wanted, "store")))
    calls = [n for n in result.forward.graph.nodes if n.op == "call_function"]
    assert [n.target for n in calls if kind_of(n) is OpKind.EXTERN] == before
    if wanted == "store":
        again = [n.target for n in result.backward.graph.nodes if n.target in before]
        backward = [n.target for n in graph.joint.backward if n.target in before]
        assert again == backward


class Squared(nn.Module):
    """A product whose gradient needs it before and after another product, [64, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        out: torch.Tensor = (self.down(nn.functional.silu(h)) * h).sum()
        return out


def test_pointwise_readers_of_a_smaller_copy_decode_it_themselves() -> None:
    """Nothing decoded is read on both sides of a product: it would have to be written out."""
    traced = trace_update(Squared(), torch.randn(64, 16))
    graph = traced.units()
    placement = place(problem_of(graph), prefer("compress:int8", "store"))
    assert placement["up:mm"] == "compress:int8"
    backward = cut(graph, placement).backward
    kinds = {n: kind_of(n) for n in backward.graph.nodes if n.op == "call_function"}
    steps = {n: k for k, step in enumerate(cut_steps(kinds, kinds)) for n in step}
    readers = {
        node: {steps[r] for r in work_readers(node, kinds) if r in steps and not r.meta.get(MADE)}
        for node in kinds
        if node.meta.get(MADE) and kinds[node] is OpKind.FUSIBLE
    }
    assert sum(map(bool, readers.values())) >= 2
    assert all(len(found) <= 1 for found in readers.values())


def test_what_is_recomputed_from_a_smaller_copy_reads_that_copy(block_float32: Traced) -> None:
    """The GELU behind a compressed product is made from the decoded product, not from the product made again."""
    graph = block_float32.units()
    problem = problem_of(graph)

    def choose(name: str) -> str:
        return "compress:int8" if name.endswith(("up:addmm", "qkv:mm")) else "recompute"

    placement = place(problem, lambda unit: choose(unit.name) if unit.can_recompute else "store")
    result = cut(graph, placement)
    again = [
        n.name for n in result.backward.graph.nodes if n.target is torch.ops.aten.addmm.default
    ]
    up = next(unit for name, unit in graph.units.items() if name.endswith("up:addmm"))
    assert up.maker.name not in result.kept()
    products_forward = [n for n in graph.joint.forward if n.target is torch.ops.aten.addmm.default]
    assert len(again) < len(products_forward)
    assert 0 < _error(result, block_float32) < replay(problem, placement).risk ** 0.5


def test_encoding_follows_the_value_and_decoding_precedes_its_reader(block_float32: Traced) -> None:
    """Encoding later would keep the value alive in the forward; decoding earlier, in the backward."""
    graph = block_float32.units()
    problem = problem_of(graph)
    placement = place(problem, prefer("compress:int8", "store"))
    result = cut(graph, placement)
    order = {node: index for index, node in enumerate(result.forward.graph.nodes)}
    made = [n for n in result.forward.graph.nodes if n.meta.get(MADE)]
    assert made
    for node in made:
        sources = [a for a in node.all_input_nodes if not a.meta.get(MADE)]
        for source in sources:
            between = [n for n in order if order[source] < order[n] < order[node]]
            assert all(n.meta.get(MADE) or compat.is_getitem(n) for n in between)
    backward = list(result.backward.graph.nodes)
    for node in backward:
        if node.op == "call_function" and node.meta.get(MADE):
            readers = [backward.index(user) for user in node.users]
            ahead = backward[backward.index(node) + 1 : min(readers)]
            kernels = [n for n in ahead if n.op == "call_function" and kind_of(n) is OpKind.EXTERN]
            assert not kernels


def test_a_unit_without_an_action_is_an_error(block: Traced) -> None:
    graph = block.units()
    placement: Mapping[str, str] = place(problem_of(graph), prefer("store"))
    gone = next(name for name in placement if name.endswith("up:addmm"))
    with pytest.raises(PlanFileError, match=f"no action for unit '{gone}'"):
        Rewriter(graph, {k: v for k, v in placement.items() if k != gone}).run()


@pytest.mark.parametrize("wanted", ["store", "recompute"])
def test_a_buffer_that_is_written_last_is_the_forwards_business(wanted: str) -> None:
    """The write stands behind the backward in the joint graph, and reads a forward value."""
    torch.manual_seed(0)
    traced = trace_update(Running(), torch.randn(64, 64))
    graph = traced.units()
    result = cut(graph, place(problem_of(graph), prefer(wanted)))
    copy = torch.ops.aten.copy_.default
    assert [n.target for n in result.forward.graph.nodes].count(copy) == 1
    assert [n.target for n in result.backward.graph.nodes].count(copy) == 0
    average = next(
        value for value in traced.primals if value.ndim == 1 and bool((value == 0.5).all())
    )
    gradients = result.run(traced)[1]
    assert not bool((average == 0.5).all())
    average.fill_(0.5)
    for found, expected in zip(gradients, traced.expected[1], strict=True):
        assert (found is None and expected is None) or torch.equal(found, expected)
