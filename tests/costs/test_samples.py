"""Samples: the same work has the same key, and runs by itself as it does in its graph."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch.fx import GraphModule, Node

from hilore_planner.costs.layout import Layout
from hilore_planner.costs.sample import (
    Sample,
    chain_sample,
    codec_sample,
    node_sample,
    not_alone,
)
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.passes import compat, compat_compile
from hilore_planner.passes.chains import Chain, cut_chain
from hilore_planner.passes.codecs import codec_named
from tests.passes.programs import HandMade

aten = torch.ops.aten


def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run graphs instead of compiling them."""

    def interpret(gm: torch.fx.GraphModule, _: object) -> Any:
        return lambda given: gm(*given)

    monkeypatch.setattr(compat, "compile_alone", interpret)


def product(columns: int = 64, *, is_transposed: bool = False) -> Node:
    hand = HandMade()
    left = hand.input("left", 32, 64)
    right = hand.input("right", columns, 64) if is_transposed else hand.input("right", 64, columns)
    if is_transposed:
        right = hand.call(aten.t.default, right)
    return hand.call(aten.mm.default, left, right)


def test_layers_that_are_alike_share_a_key_and_others_do_not() -> None:
    one = node_sample(product())
    assert node_sample(product()).key == one.key
    assert node_sample(product(128)).key != one.key
    turned = node_sample(product(is_transposed=True))
    assert turned.key != one.key
    assert turned.shape_key == one.shape_key
    assert one.what == "mm float32[32,64], float32[64,64]"


def test_a_kernel_of_its_own_is_called_without_compiling_it() -> None:
    sample = node_sample(product(is_transposed=True))
    given = [layout.made_up(torch.device("cpu")) for layout in sample.inputs()]
    assert sample.eager is not None
    assert torch.equal(sample.eager(given)(), given[0] @ given[1])  # type: ignore[arg-type]
    assert chain_sample(softmaxed()[0]).eager is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_that_is_added_is_timed_in_the_totals_own_memory(dtype: torch.dtype) -> None:
    hand = HandMade()
    total = hand.input("total", 8, 4)
    left, right = hand.input("left", 8, 16, dtype=dtype), hand.input("right", 16, 4, dtype=dtype)
    added = node_sample(hand.call(compat.added_mm(), total, left, right))
    given = [layout.made_up(torch.device("cpu")) for layout in added.inputs()]
    start, product = given[0].clone(), given[1].float() @ given[2].float()
    work = added.make(given)
    work.wait()
    for _ in range(2):
        work(list(given))
    expected = 0.25 * start + 1.5 * 0.5 / 16 * product
    assert torch.allclose(given[0], expected, atol=1e-2 if dtype == torch.bfloat16 else 1e-5)
    assert added.eager is not None
    assert added.what.startswith("added_mm float32[8,4]")


def run(sample: Sample, given: list[torch.Tensor]) -> list[torch.Tensor]:
    result: Any = sample.make(given)(list(given))
    return list(result)


def softmaxed(dtype: torch.dtype = torch.float32) -> tuple[Chain, Node]:
    hand = HandMade()
    x = hand.input("x", 8, 16, dtype=dtype)
    exponent = hand.call(aten.exp.default, x)
    total = hand.call(aten.sum.dim_IntList, exponent, [1], True)
    out = hand.call(aten.div.Tensor, exponent, total)
    return Chain((exponent, total, out), (x,), (out, total), (8 * 16 * 4,)), x


def test_a_chain_computes_what_it_does_in_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted(monkeypatch)
    sample = chain_sample(softmaxed()[0])
    assert sample.key == chain_sample(softmaxed()[0]).key
    assert sample.key != chain_sample(softmaxed(torch.float64)[0]).key
    x = sample.inputs()[0].made_up(torch.device("cpu"))
    out, total = run(sample, [x])
    assert torch.allclose(out, torch.softmax(x, -1))
    assert torch.allclose(total, x.exp().sum(-1, keepdim=True))


def chunk(start: int, *, is_tied: bool = False) -> Chain:
    """Eight rows of a value, doubled; possibly held after a product."""
    hand = HandMade()
    x = hand.input("x", 32, 16)
    anchor = hand.call(aten.mm.default, hand.input("left", 4, 4), hand.input("right", 4, 4))
    rows = hand.call(aten.slice.Tensor, x, 0, start, start + 8)
    read = hand.call(compat.held_after(), rows, anchor) if is_tied else rows
    out = hand.call(aten.mul.Tensor, read, 2.0)
    return cut_chain([out], lambda node: node in (rows, read, out))


def test_where_a_slice_begins_and_what_work_is_held_after_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interpreted(monkeypatch)
    free, tied = chain_sample(chunk(0)), chain_sample(chunk(8, is_tied=True))
    assert (tied.key, tied.what) == (free.key, free.what)
    assert chunk(8, is_tied=True).moved_bytes == chunk(8).moved_bytes
    (layout,) = tied.inputs()
    x = layout.made_up(torch.device("cpu"))
    (out,) = run(tied, [x])
    assert torch.equal(out, 2 * x[8:16])


def test_an_op_of_several_outputs_returns_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted(monkeypatch)
    hand = HandMade()
    q = hand.input("q", 1, 2, 64, 32)
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    attention = hand.call(flash, q, q, q, 0.0, True)
    for place in (0, 1):
        hand.call(operator.getitem, attention, place)
    sample = node_sample(attention)
    given = [layout.made_up(torch.device("cpu")) for layout in sample.inputs()]
    assert len(given) == 1  # q is one input, read three times
    out, lse = run(sample, given)
    assert (out.shape, lse.shape) == ((1, 2, 64, 32), (1, 2, 64))


def test_indices_stay_in_what_they_index() -> None:
    hand = HandMade()
    table, ids = hand.input("table", 50, 8), hand.input("ids", 4, 16, dtype=torch.int64)
    rows = hand.call(aten.embedding.default, table, ids)
    picked = hand.call(aten.gather.default, rows, 2, hand.call(aten.unsqueeze.default, ids, 2))
    looked_up = chain_sample(Chain((rows,), (table, ids), (rows,), (0, 0)))
    both = chain_sample(
        Chain((rows, *picked.all_input_nodes[1:], picked), (table, ids), (picked,), (0, 0))
    )
    assert [layout.limit for layout in looked_up.inputs()] == [50, 50]
    assert both.inputs()[1].limit == 8  # the gather's dimension is smaller than the table
    drawn = looked_up.inputs()[1].made_up(torch.device("cpu"))
    assert 0 <= int(drawn.min()) < int(drawn.max()) < 50


def test_codecs_encode_and_decode_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted(monkeypatch)
    codec, layout = codec_named("int8"), Layout((4, 128), (128, 1), torch.float32)
    encode, decode = (codec_sample(use, codec, layout) for use in ("encode", "decode"))
    x = layout.made_up(torch.device("cpu"))
    parts = run(encode, [x])
    assert [tuple(part.shape) for part in parts] == [part.shape for part in decode.inputs()]
    (value,) = run(decode, parts)
    assert torch.linalg.vector_norm(value - x) < 0.02 * torch.linalg.vector_norm(x)
    other = codec_sample("encode", codec, Layout((8, 128), (128, 1), torch.float32))
    assert len({encode.key, decode.key, other.key}) == 3


def test_contiguous_values_are_alike_row_by_row() -> None:
    rows = Layout((8, 128), (128, 1), torch.float32)
    assert Layout((2, 4, 128), (512, 128, 1), torch.float32).in_rows() == rows
    turned = Layout((2, 4, 128), (512, 1, 4), torch.float32)
    assert turned.in_rows() == turned
    assert turned.count == rows.count == 8 * 128
    expanded = Layout((8, 128), (0, 1), torch.bfloat16)
    assert expanded.count == 128
    assert expanded.made_up(torch.device("cpu")).stride() == (0, 1)


def test_what_may_do_more_than_compute_is_not_run() -> None:
    hand = HandMade()
    x = hand.input("x", 4)
    assert not not_alone(hand.call(aten.sin.default, x))
    assert "writes" in not_alone(hand.call(aten.copy_.default, x, x))
    assert "higher-order" in not_alone(hand.call(operator.neg, x))

    @torch.library.custom_op("hilore_tests::priced", mutates_args=())
    def priced(value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    priced.register_fake(torch.empty_like)
    assert "custom" in not_alone(hand.call(torch.ops.hilore_tests.priced.default, x))


@pytest.mark.compat
def test_a_sample_is_compiled_and_timed() -> None:
    stopwatch, sample = Stopwatch(torch.device("cpu")), _product_sample()
    (entry,) = stopwatch.times([(sample, stopwatch.ready(sample))], [])
    assert entry.what == sample.what
    assert entry.ns is not None
    assert entry.ns > 0


def _product_sample() -> Sample:
    return node_sample(product())


@pytest.mark.compat
def test_kernels_are_waited_for_when_they_are_first_called(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    really = compat_compile._wait

    def wait(compiler: AsyncCompile, scope: dict[str, Any]) -> None:
        waited.append(scope)
        really(compiler, scope)

    monkeypatch.setattr(compat_compile, "_wait", wait)
    hand = HandMade()
    x = hand.input("x", 8, 8)
    hand.graph.output((hand.call(aten.exp.default, x),))
    run = compat.compile_alone(GraphModule(torch.nn.Module(), hand.graph), [torch.ones(8, 8)])
    assert waited == []
    assert AsyncCompile.wait is wait  # of other graphs, as before
    for _ in range(2):
        (found,) = run([torch.zeros(8, 8)])
        assert torch.equal(found, torch.ones(8, 8))
    assert len(waited) == 1
