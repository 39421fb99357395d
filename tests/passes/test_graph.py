from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hilore_planner.passes import compat
from hilore_planner.passes.ops import OpKind, kind_of, op_name
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import build_units
from tests.passes.joint import Traced, trace_update

pytestmark = pytest.mark.compat


class _DropoutOfNothing(nn.Module):
    """Joint passes remove the copy that dropout of nothing makes, before a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.up(x)), 0.0)
        out: torch.Tensor = self.down(y).square().mean()
        return out


class _Split(nn.Module):
    """As above, before a split."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.split(F.dropout(F.gelu(self.up(x)), 0.0), 64, dim=-1)
        out: torch.Tensor = (a * b).square().mean()
        return out


@pytest.mark.parametrize("model", [_DropoutOfNothing, _Split])
def test_views_of_removed_copies_are_views_of_what_was_copied(model: type[nn.Module]) -> None:
    joint = trace_update(model(), torch.randn(4, 16, 64)).joint()
    views = [node for node in joint.forward if compat.is_view(node)]
    assert {op_name(node) for node in views} & {"view", "split", "slice"}
    for node in views:
        assert kind_of(node) is OpKind.VIEW
    made = {compat.storage_key(n) for n in joint.forward if kind_of(n) is not OpKind.VIEW}
    inputs = {compat.storage_key(node) for node in joint.primals}
    for node in joint.forward:
        if kind_of(node) is OpKind.VIEW and isinstance(node.meta["val"], torch.Tensor):
            assert compat.storage_key(node) in made | inputs


def test_forward_and_backward_are_told_apart(block: Traced) -> None:
    joint = block.joint()
    order = {node: index for index, node in enumerate(joint.gm.graph.nodes)}
    assert max(order[n] for n in joint.forward) < min(order[n] for n in joint.backward)
    assert len(joint.primals) == len(block.primals)
    assert len(joint.tangents) == 1
    assert joint.num_forward_outputs == 1
    assert len(joint.backward_outputs) == len(joint.primals)
    assert {n.op for n in (*joint.forward, *joint.backward)} == {"call_function"}


def test_parameters_are_static_and_the_batch_is_not(block: Traced) -> None:
    joint = block.joint()
    batch = [value.shape == (2, 32, 64) for value in block.primals].index(True)
    assert joint.primals[batch] not in joint.static_inputs
    assert len(joint.static_inputs) == len(block.primals) - 1


def test_an_input_that_the_update_overwrites_is_known() -> None:
    class Counting(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 64)
            self.register_buffer("seen", torch.zeros(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.mul_(0.9).add_(x.detach().mean(0))
            out: torch.Tensor = (self.inner(x) * self.seen).square().mean()
            return out

    joint = trace_update(Counting(), torch.randn(16, 64)).joint()
    (mutated,) = joint.mutated_inputs
    assert tuple(mutated.meta["val"].shape) == (64,)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo itself asks for it
def test_an_input_with_a_gradient_that_the_update_overwrites_is_known() -> None:
    """Autograd has to see this one: the graph returns what the runtime then writes."""

    def update(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        x.mul_(2)
        return y.square().mean()

    leaf = torch.randn(16, 64, requires_grad=True)
    joint = trace_update(update, leaf * 1).joint()
    assert joint.mutated_inputs == {joint.primals[0]}
    graph = build_units(joint, build_schedule(joint), small_bytes=0)
    assert {unit.name: unit.forced for unit in graph.units.values()} == {
        "exp": "reads an input that is overwritten"
    }


def test_outputs_and_inputs_are_held(block: Traced) -> None:
    joint = block.joint()
    held = joint.held_storages()
    assert {compat.storage_key(node) for node in joint.primals} <= {*held}
    (output,) = joint.forward_outputs
    assert output is not None
    assert compat.storage_key(output) in held
    products = [n for n in joint.forward if op_name(n) == "addmm"]
    assert products
    assert held.isdisjoint(compat.storage_key(n) for n in products)
