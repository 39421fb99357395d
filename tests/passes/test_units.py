from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn

from hilore_planner.passes import compat
from hilore_planner.passes.ops import OpKind
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit, build_units
from tests.passes.joint import Traced, trace_update
from tests.passes.programs import HandMade

pytestmark = pytest.mark.compat
aten, prims = torch.ops.aten, torch.ops.prims


def _find(graph: RecoveryGraph, ending: str) -> RecoveryUnit:
    (unit,) = (unit for name, unit in graph.units.items() if name.endswith(ending))
    return unit


def _hand(
    joint_of: HandMade, outputs: list[Any], gradients: list[Any], **keywords: Any
) -> RecoveryGraph:
    small_bytes = keywords.pop("small_bytes", 0)
    joint = joint_of.joint(outputs, gradients, **keywords)
    return build_units(joint, build_schedule(joint), small_bytes=small_bytes)


def test_units_come_parents_first_and_without_cycles(block: Traced) -> None:
    graph = block.units()
    order = {name: index for index, name in enumerate(graph.units)}
    assert len(order) > 8
    assert nx.is_directed_acyclic_graph(graph.digraph)
    assert set(graph.digraph) == set(order)
    assert all(order[parent] < order[child] for parent, child in graph.digraph.edges)


def test_every_value_that_backward_reads_is_a_unit_or_always_at_hand(block: Traced) -> None:
    graph = block.units()
    joint = graph.joint
    known = {compat.storage_key(unit.maker) for unit in graph.units.values()}
    known |= joint.held_storages()
    readers = {node for unit in graph.units.values() for node in unit.readers}
    for node in joint.backward:
        if graph.schedule.kinds[node] is OpKind.VIEW:
            continue
        for arg in node.all_input_nodes:
            if arg in joint.forward and compat.storage_key(arg) not in known:
                # It was folded: what reads it, reads its parents.
                assert node in readers


def test_steps_of_a_unit_agree_with_the_schedule(block: Traced) -> None:
    graph = block.units()
    boundary = graph.schedule.first_backward
    for unit in graph.units.values():
        assert unit.made_at < boundary
        assert unit.made_at - 1 <= unit.released_at < boundary
        assert list(unit.read_at) == sorted({graph.schedule.step_of[n] for n in unit.readers})
        assert all(step >= boundary for step in unit.read_at)


def test_attention_is_a_unit_without_bytes_that_its_outputs_read(block: Traced) -> None:
    graph = block.units()
    attention = _find(graph, ":_scaled_dot_product_flash_attention_for_cpu")
    assert (attention.kept_bytes, attention.can_store, attention.can_recompute) == (0, False, True)
    assert graph.parents(attention.name) == (_find(graph, "qkv:mm").name,)
    for index in (0, 1):
        output = _find(graph, f"_for_cpu[{index}]")
        assert graph.parents(output.name) == (attention.name,)
        assert output.can_store
    assert _find(graph, "_for_cpu[0]").kept_bytes == 2 * 32 * 64 * 8


def test_small_values_that_backward_reads_are_stored(block: Traced) -> None:
    # Per-row statistics are 2 * 32 * 8 = 512 bytes, log-sum-exp 2 * 4 * 32 * 8 = 2048.
    units = block.units(small_bytes=4096).units
    forced = {name: unit for name, unit in units.items() if unit.forced == "small"}
    assert forced
    assert all(u.kept_bytes < 4096 and not u.can_recompute and u.can_store for u in forced.values())
    free = [u for u in units.values() if u.readers and u.kept_bytes >= 4096]
    assert all(not u.forced and u.can_recompute for u in free)
    assert not [u for u in block.units().units.values() if u.forced]


class _Autocast(nn.Module):
    """A bf16 product of fp32 weights, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.down(torch.relu(self.up(x)))
        out: torch.Tensor = y.float().square().mean()
        return out


def test_copies_of_parameters_are_rebuilt_and_never_kept() -> None:
    graph = trace_update(_Autocast(), torch.randn(4, 16, 64)).units()
    parameters = {compat.storage_key(node) for node in graph.joint.static_inputs}
    casts = [
        unit
        for unit in graph.units.values()
        if compat.storage_key(unit.maker.all_input_nodes[0]) in parameters
        and len(unit.maker.all_input_nodes) == 1
    ]
    assert casts, "the backward of a product reads the cast weight"
    for unit in casts:
        assert (unit.can_store, unit.can_recompute) == (False, True)
        assert unit.forced == "copy of a parameter"
        assert graph.parents(unit.name) == ()
    batch_casts = [
        u for u in graph.units.values() if u not in casts and u.origin.op.startswith("convert")
    ]
    assert all(u.can_store for u in batch_casts)


def test_a_reduction_of_a_parameter_is_kept_like_any_value() -> None:
    hand = HandMade()
    w, tangent = hand.input("primals_1", 64, 64), hand.input("tangents_1", 64)
    total = hand.call(aten.sum.dim_IntList, w, [1])
    out = hand.call(aten.exp.default, hand.call(aten.mul.Tensor, total, total))
    grad = hand.call(aten.mul.Tensor, tangent, total, tag="is_backward")
    graph = _hand(hand, [out], [grad], parameters=[0])
    assert _find(graph, "sum").can_store


def test_seeds_are_kept_and_masks_are_drawn_again() -> None:
    class Dropout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.dropout(self.inner(x), 0.3)
            out: torch.Tensor = self.inner(y).square().mean()
            return out

    graph = trace_update(Dropout(), torch.randn(4, 16, 64)).units()
    seeds = _find(graph, "inductor_seeds")
    assert (seeds.can_store, seeds.can_recompute, seeds.forced) == (
        True,
        False,
        "draws random numbers",
    )
    assert [u.name for u in graph.units.values() if u.forced] == [seeds.name]
    # Drawing the mask from its seed is folded away: nobody keeps it, backward reads the seeds.
    assert not [
        u.name for u in graph.units.values() if "inductor_random" in u.name or "gt" in u.name
    ]
    assert seeds.read_at


def test_values_made_from_an_overwritten_input_are_stored() -> None:
    class Running(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 64)
            self.register_buffer("scale", torch.ones(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(self.inner(x) * torch.exp(self.scale))
            self.scale.mul_(0.9)
            out: torch.Tensor = y.square().mean()
            return out

    graph = trace_update(Running(), torch.randn(4, 16, 64)).units()
    exp = _find(graph, "exp")
    assert (exp.can_recompute, exp.forced) == (False, "reads an input that is overwritten")
    assert _find(graph, "inner:addmm").can_recompute


def test_outputs_that_the_caller_holds_are_no_units() -> None:
    def update(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x @ w)
        return y, (y * y).sum()

    w = torch.randn(64, 64, requires_grad=True)
    graph = trace_update(update, torch.randn(64, 64), w).units()
    assert [unit.origin.op for unit in graph.units.values()] == []


def test_a_wide_pointwise_chain_is_one_decision() -> None:
    """relu(a) * 3 is never smaller than a: its readers read a."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    b = hand.call(aten.mul.Tensor, hand.call(aten.relu.default, a), 3)
    out = hand.call(aten.mm.default, hand.call(aten.exp.default, b), w)
    grad = hand.call(aten.mul.Tensor, tangent, b, tag="is_backward")
    graph = _hand(hand, [out], [grad])
    (unit,) = graph.units.values()
    assert unit.name == "mm"
    assert [node.target for node in unit.readers] == [aten.mul.Tensor]
    assert unit.rebuilt_bytes == 64 * 64 * 4


def test_what_a_kernel_reads_is_a_decision_of_its_own() -> None:
    """A product's operand is written out: storing it saves its rebuilding, so it is not folded."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    b = hand.call(aten.relu.default, a)
    out = hand.call(aten.mm.default, b, w)
    grad = hand.call(aten.mm.default, tangent, b, tag="is_backward")
    graph = _hand(hand, [out], [grad])
    assert list(graph.units) == ["mm", "relu"]
    assert graph.parents("relu") == ("mm",)
    assert graph.units["relu"].rebuilt_bytes == 64 * 64 * 4


def test_values_that_neither_backward_nor_recomputation_reads_are_no_units() -> None:
    hand = HandMade()
    x, tangent = hand.input("primals_1", 64, 64), hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, x)
    out = hand.call(aten.mm.default, a, x)
    grad = hand.call(aten.mm.default, tangent, x, tag="is_backward")
    assert _hand(hand, [out], [grad]).units == {}


def test_a_rebuilt_value_stays_in_registers_where_one_fused_step_reads_it() -> None:
    hand = HandMade()
    x, tangent = hand.input("primals_1", 64, 64), hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, x)
    half = hand.call(prims.convert_element_type.default, a, torch.bfloat16)
    sums = hand.call(aten.sum.dim_IntList, a, [1], True)
    out = hand.call(aten.mm.default, half, half)
    back = {"tag": "is_backward"}
    grad = hand.call(
        aten.mul.Tensor, tangent, hand.call(aten.add.Tensor, half, sums, **back), **back
    )
    graph = _hand(hand, [out], [grad])
    assert {name: unit.rebuilt_bytes for name, unit in graph.units.items()} == {
        "mm": 64 * 64 * 4,  # a product writes its result
        "convert_element_type": 0,
        "sum": 0,
    }


@pytest.mark.parametrize(
    ("policy", "forced", "can"),
    [("MUST_SAVE", "must be saved", False), (None, "", True)],
)
def test_a_must_save_policy_is_obeyed(policy: str | None, forced: str, can: bool) -> None:
    hand = HandMade()
    x, tangent = hand.input("primals_1", 64, 64), hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, x)
    out = hand.call(aten.mm.default, a, x)
    grad = hand.call(aten.mm.default, tangent, a, tag="is_backward")
    joint = hand.joint([out], [grad])
    node = joint.forward[0]
    if policy is not None:
        node.meta["recompute"] = getattr(torch.utils.checkpoint.CheckpointPolicy, policy)
    unit = build_units(joint, build_schedule(joint), small_bytes=0).units["mm"]
    assert (unit.forced, unit.can_recompute) == (forced, can)
