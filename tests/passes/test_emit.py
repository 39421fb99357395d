from __future__ import annotations

import pytest
import torch
from torch.fx import Interpreter

from hilore_planner.passes import compat
from hilore_planner.passes.codecs import Codec, codec_named
from hilore_planner.passes.emit import clone_node, inline
from hilore_planner.passes.marks import MADE
from hilore_planner.solvers import replay
from tests.passes.joint import Traced, cut, trace_update
from tests.passes.placements import place, prefer, problem_of
from tests.passes.programs import Block, HandMade, seeded
from tests.peak.programs import MeanSquare

pytestmark = pytest.mark.compat
aten = torch.ops.aten

LOSSY = [
    "int8",
    "fp8_e4m3",
    "int6",
    "int4",
    "bf16",
    "int8[:1/4]+int4[:3/4]+drop",
    "store[:3/4]+int8",
]


@pytest.fixture(scope="module")
def dynamic() -> Traced:
    """A block whose batch and length are symbols."""
    model = torch.nn.Sequential(seeded(Block), MeanSquare())
    return trace_update(model, torch.randn(2, 32, 64), dynamic=True)


@pytest.mark.parametrize(
    "codec",
    [codec_named(name, rounding) for name in LOSSY for rounding in ("nearest", "stochastic")],
    ids=lambda codec: codec.name,
)
def test_inlined_functions_compute_what_the_function_does(codec: Codec) -> None:
    hand = HandMade()
    x = hand.input("x", 4, 96)
    y = hand.call(aten.relu.default, x)
    parts = inline(hand.graph, codec.encode, [y], tag="is_forward", origin=y)
    (back,) = inline(
        hand.graph, lambda *p: codec.decode(p, torch.float32), parts, tag="is_backward", origin=y
    )
    hand.graph.output([*parts, back])
    value = torch.randn(4, 96)
    found = Interpreter(torch.fx.GraphModule(torch.nn.Module(), hand.graph)).run(value)
    expected = codec.encode(value.relu())
    assert all(map(torch.equal, found[:-1], expected))
    assert torch.equal(found[-1], codec.decode(expected, torch.float32))
    for node in parts:
        assert compat.storage_key(node) != compat.storage_key(y)
        assert node.meta["partitioner_tag"] == "is_forward"
        assert node.meta[MADE]
    assert back.meta["partitioner_tag"] == "is_backward"
    assert back.meta["val"].shape == (4, 96)


def test_attribution_is_that_of_the_origin(block: Traced) -> None:
    graph = block.units()
    unit = next(u for u in graph.units.values() if u.origin.op == "addmm")
    with graph.joint.gm.graph.inserting_before(unit.maker.next):
        (node,) = inline(
            graph.joint.gm.graph,
            lambda x: x.abs(),
            [unit.maker],
            tag="is_forward",
            origin=unit.maker,
        )
    for key in ("nn_module_stack", "stack_trace"):
        assert node.meta[key] == unit.maker.meta[key]


def test_a_clone_has_a_storage_of_its_own_and_no_tag() -> None:
    hand = HandMade()
    x = hand.input("x", 4, 4)
    y = hand.call(aten.relu.default, x)
    y.meta["recompute"] = "anything"
    copy = clone_node(hand.graph, y, lambda node: node)
    assert copy.args == y.args
    assert compat.storage_key(copy) not in (compat.storage_key(y), None)
    assert "recompute" not in copy.meta
    assert copy.meta["partitioner_tag"] == "must_be_in_backward"
    view = hand.call(aten.view.default, y, [16])
    twin = clone_node(hand.graph, view, lambda node: copy if node is y else node)
    assert compat.storage_key(twin) == compat.storage_key(copy)


@pytest.mark.parametrize("wanted", ["recompute", *(f"compress:{c}" for c in LOSSY[:4])])
def test_symbolic_sizes_come_from_nodes(dynamic: Traced, wanted: str) -> None:
    graph = dynamic.units()
    assert any(isinstance(s, torch.SymInt) for n in graph.joint.forward for s in _shape(n))
    problem = problem_of(graph)
    placement = place(problem, prefer(wanted, "store"))
    risk = replay(problem, placement).risk
    assert wanted in placement.values()
    result = cut(graph, placement)
    for gm in (result.forward, result.backward):
        gm.graph.lint()
        for node in gm.graph.nodes:
            flat = torch.utils._pytree.tree_leaves((node.args, node.kwargs))
            assert not any(isinstance(argument, torch.SymInt) for argument in flat)
    _, gradients = result.run(dynamic)
    _, expected = dynamic.expected
    pairs = [
        (g, e) for g, e in zip(gradients, expected, strict=True) if isinstance(g, torch.Tensor)
    ]
    assert len(pairs) > 5
    for found, wanted_value in pairs:
        if wanted == "recompute":
            assert torch.equal(found, wanted_value)
        else:
            assert (found - wanted_value).norm() <= risk**0.5 * wanted_value.norm()


def _shape(node: torch.fx.Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
