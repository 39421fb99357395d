from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives  # registers the operators
from torch.fx import Node

from hilore_planner.passes.ops import (
    OpKind,
    flops,
    is_random,
    kind_of,
    op_name,
    replay_forbidden,
    storage_bytes,
)
from tests.passes.programs import HandMade

pytestmark = pytest.mark.compat
aten, prims = torch.ops.aten, torch.ops.prims


@pytest.fixture(scope="module")
def doubled() -> Iterator[Any]:
    with torch.library._scoped_library("hilore_tests", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("doubled", lambda x: torch.empty_like(x), "Meta")
        yield torch.ops.hilore_tests.doubled.default


@pytest.fixture
def hand() -> HandMade:
    return HandMade()


def _kinds(hand: HandMade) -> dict[str, Node]:
    x, w = hand.input("x", 8, 16), hand.input("w", 16, 16)
    ids = hand.input("ids", 4, dtype=torch.int64)
    pair = hand.call(aten.var_mean.correction, x, [1], correction=0, keepdim=True)
    largest = hand.call(aten.max.dim, x, 1)
    return {
        "relu": hand.call(aten.relu.default, x),
        "cast": hand.call(prims.convert_element_type.default, x, torch.bfloat16),
        "sum": hand.call(aten.sum.dim_IntList, x, [1]),
        "embedding": hand.call(aten.embedding.default, w, ids),
        "softmax": hand.call(aten._softmax.default, x, -1, False),
        "pair": pair,
        "mean": hand.call(operator.getitem, pair, 1),
        "largest": hand.call(operator.getitem, largest, 0),
        "view": hand.call(aten.view.default, x, [16, 8]),
        "transposed": hand.call(aten.permute.default, w, [1, 0]),
        "mm": hand.call(aten.mm.default, x, w),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("relu", OpKind.FUSIBLE),
        ("cast", OpKind.FUSIBLE),
        ("sum", OpKind.FUSIBLE),
        ("embedding", OpKind.FUSIBLE),
        ("softmax", OpKind.FUSIBLE),
        ("pair", OpKind.FUSIBLE),
        ("mean", OpKind.VIEW),
        ("largest", OpKind.VIEW),
        ("view", OpKind.VIEW),
        ("transposed", OpKind.VIEW),
        ("mm", OpKind.EXTERN),
    ],
)
def test_kinds(hand: HandMade, name: str, kind: OpKind) -> None:
    assert kind_of(_kinds(hand)[name]) is kind


def test_a_clone_has_bytes_of_its_own(hand: HandMade) -> None:
    assert kind_of(hand.call(aten.clone.default, hand.input("x", 8))) is OpKind.FUSIBLE


def test_storage_bytes_are_those_of_the_whole_storage(hand: HandMade) -> None:
    part = hand.call(aten.slice.Tensor, hand.input("x", 8, 16), 0, 0, 2)
    assert storage_bytes(part.meta["val"]) == 8 * 16 * 4


def test_names_of_ops_and_of_their_outputs(hand: HandMade) -> None:
    nodes = _kinds(hand)
    assert op_name(nodes["mm"]) == "mm"
    assert op_name(nodes["mean"]) == "var_mean[1]"
    assert op_name(nodes["cast"]) == "convert_element_type"


def test_ordinary_work_may_be_run_again(hand: HandMade) -> None:
    assert {name: replay_forbidden(node) for name, node in _kinds(hand).items()} == dict.fromkeys(
        _kinds(HandMade()), ""
    )


def test_a_custom_operator_is_never_run_again(hand: HandMade, doubled: Any) -> None:
    node = hand.call(doubled, hand.input("x", 8))
    assert kind_of(node) is OpKind.EXTERN
    assert replay_forbidden(node) == "custom operator"


@pytest.mark.parametrize("name", ["all_reduce", "wait_tensor", "all_gather_into_tensor"])
def test_a_collective_is_never_run_again(hand: HandMade, name: str) -> None:
    target = getattr(torch.ops._c10d_functional, name).default
    node = hand.graph.call_function(target, (hand.input("x", 8),))
    node.meta["val"] = hand.tensor(8)
    assert kind_of(node) is OpKind.EXTERN
    assert replay_forbidden(node) == "collective"


def test_what_overwrites_its_input_is_never_run_again(hand: HandMade) -> None:
    node = hand.call(aten.add_.Tensor, hand.input("x", 8), 1)
    assert replay_forbidden(node) == "mutates its input"


def test_a_higher_order_operator_is_never_run_again(hand: HandMade) -> None:
    node = hand.graph.call_function(torch.ops.higher_order.cond, (hand.input("x", 8),))
    assert replay_forbidden(node) == "higher-order operator"


@pytest.mark.parametrize(
    "draw",
    [
        lambda hand, x: hand.call(aten.rand.default, [8]),
        lambda hand, x: hand.call(aten.native_dropout.default, x, 0.1, True),
        lambda hand, x: hand.call(prims.inductor_seeds.default, 2, torch.device("cpu")),
    ],
)
def test_random_numbers_are_never_drawn_again(hand: HandMade, draw: Any) -> None:
    node = draw(hand, hand.input("x", 8))
    assert is_random(node)
    assert replay_forbidden(node) == "draws random numbers"


def test_numbers_from_a_seed_that_is_kept_may_be_drawn_again(hand: HandMade) -> None:
    seeds = hand.call(prims.inductor_seeds.default, 1, torch.device("cpu"))
    seed = hand.call(prims.inductor_lookup_seed.default, seeds, 0)
    drawn = hand.call(prims.inductor_random.default, [8], seed, "rand")
    assert [replay_forbidden(node) for node in (seed, drawn)] == ["", ""]


@pytest.mark.parametrize(("dropout", "forbidden"), [(0.0, ""), (0.1, "draws random numbers")])
def test_attention_is_run_again_only_without_dropout(
    hand: HandMade, dropout: float, forbidden: str
) -> None:
    q = hand.input("q", 2, 4, 16, 8)
    node = hand.call(
        aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q, dropout, True
    )
    assert replay_forbidden(node) == forbidden


def test_attention_whose_dropout_is_left_out_has_none(hand: HandMade) -> None:
    q = hand.input("q", 2, 4, 16, 8)
    node = hand.call(aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q)
    assert not is_random(node)


def test_flops_of_products(hand: HandMade) -> None:
    x, w, bias = hand.input("x", 8, 16), hand.input("w", 16, 32), hand.input("b", 32)
    assert flops(hand.call(aten.mm.default, x, w)) == 2 * 8 * 16 * 32
    assert flops(hand.call(aten.addmm.default, bias, x, w)) == 2 * 8 * 16 * 32
    batched = hand.input("y", 3, 8, 16), hand.input("z", 3, 16, 4)
    assert flops(hand.call(aten.bmm.default, *batched)) == 2 * 3 * 8 * 16 * 4
    assert flops(hand.call(aten.relu.default, x)) == 0


@pytest.mark.parametrize(("is_causal", "share"), [(False, 1), (True, 2)])
def test_flops_of_attention_with_grouped_queries(
    hand: HandMade, is_causal: bool, share: int
) -> None:
    # 8 query heads on 2 key heads: every query head still meets all 32 keys.
    # Forward: QK' and PV, 2 * rows * columns * width each; backward has five such products.
    one = 2 * (2 * 8) * (16 * 32) * 64 // share
    q, k = hand.input("q", 2, 8, 16, 64), hand.input("k", 2, 2, 32, 64)
    forward = hand.graph.call_function(
        aten._scaled_dot_product_flash_attention.default, (q, k, k, 0.0, is_causal)
    )
    assert flops(forward) == 2 * one
    lse = hand.input("lse", 2, 8, 16)
    backward = hand.graph.call_function(
        aten._scaled_dot_product_flash_attention_backward.default,
        (q, q, k, k, q, lse, None, None, 16, 32, 0.0, is_causal, lse, lse),
    )
    assert flops(backward) == 5 * one
