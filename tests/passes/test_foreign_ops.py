"""Collectives, higher-order and custom operators: priced, kept, and never run a second time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.distributed.fake_pg import FakeStore

from hilore_planner.passes.cost import Roofline
from hilore_planner.passes.devices import profile_of
from hilore_planner.passes.ops import OpKind, flops, kind_of
from hilore_planner.passes.problem import build_problem
from hilore_planner.passes.units import RecoveryGraph
from hilore_planner.solvers import solve
from tests.passes.joint import Traced, trace_update

ROWS, WIDTH, HEADS = 128, 64, 4


def _scale(x: Tensor) -> Tensor:
    return 2 * x


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    """A layer whose weight is gathered from two ranks, with flex attention and an operator of the user's."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    with torch.library._scoped_library("hilore_foreign", "FRAGMENT"):
        scale = torch.library.custom_op("hilore_foreign::scale", _scale, mutates_args=())
        scale.register_fake(torch.empty_like)
        scale.register_autograd(lambda _context, gradient: gradient * 2)

        def layer(x: Tensor, weight: Tensor, shard: Tensor) -> Tensor:
            whole = collectives.all_gather_tensor(shard, 0, [0, 1])
            heads = (torch.relu(x @ whole) @ weight).view(1, ROWS, HEADS, -1).transpose(1, 2)
            fixed = heads.detach()  # flex attention has no backward on a CPU
            mixed = flex_attention(fixed, fixed, fixed) * heads
            scaled: Tensor = scale(mixed.sin())
            return scaled.square().sum()

        yield trace_update(
            layer,
            torch.randn(ROWS, WIDTH),
            torch.randn(WIDTH, WIDTH, requires_grad=True),
            torch.randn(WIDTH // 2, WIDTH),
        )
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def graph(traced: Traced) -> RecoveryGraph:
    return traced.units()


def _costs() -> Roofline:
    return Roofline(profile_of(torch.device("cpu")))


def test_each_kernel_has_a_price_of_its_work(graph: RecoveryGraph) -> None:
    costs = _costs()
    nodes = {node.name: node for node in graph.joint.gm.graph.nodes}
    moved_bytes = {
        "all_gather_into_tensor": WIDTH * WIDTH * 4 * 3 // 2,
        "flex_attention": 4 * ROWS * WIDTH * 4,
        "scale": 2 * ROWS * WIDTH * 4,
    }
    for name, size_bytes in moved_bytes.items():
        assert kind_of(nodes[name]) is OpKind.EXTERN
        assert costs.node_ns(nodes[name]) >= costs.launch_ns + costs.move_ns(size_bytes), name


def test_flex_attention_counts_both_products(graph: RecoveryGraph) -> None:
    (node,) = [n for n in graph.joint.gm.graph.nodes if "flex_attention" in n.name]
    assert flops(node) == 2 * 2 * ROWS * ROWS * WIDTH


def test_none_is_run_again_whatever_the_cap(graph: RecoveryGraph) -> None:
    reasons = {unit.forced for unit in graph.units.values() if not unit.can_recompute}
    assert {"collective", "higher-order operator", "custom operator"} <= reasons
    problem = build_problem(
        graph,
        _costs(),
        codecs=(),
        base_bytes=0,
        memory_cap_bytes=0,
        gradient_error=0.0,
    )
    refused = solve(problem)
    assert refused.status == "infeasible"
    forbidden = {unit.name for unit in graph.units.values() if not unit.can_recompute}
    assert forbidden & refused.witness.keys()
    assert not [name for name in forbidden if refused.witness.get(name) == "recompute"]
