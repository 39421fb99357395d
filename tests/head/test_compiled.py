"""Cut heads through real partitioning, dynamic shapes and Inductor."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.fx import GraphModule, Node

from hilore_planner.grpo.head import log_probs
from hilore_planner.head_plan import Totals
from hilore_planner.passes import compat
from hilore_planner.passes.head import rewrite_head
from hilore_planner.passes.order import keep_order
from tests.head.heads import (
    Batch,
    Plain,
    assert_close,
    batch,
    capture,
    gspo,
    ppo,
    prepare,
    responses,
    site,
)

Loss = Callable[[Tensor, Batch], Tensor]


def update(b: Batch, loss: Loss) -> Tensor:
    return loss(log_probs(responses(b), b.weight, b.targets), b)


def wider(b: Batch) -> Batch:
    """The same numbers in float64."""
    states, head = (value.detach().double().requires_grad_() for value in (b.hidden, b.weight))
    return replace(
        b,
        hidden=states,
        weight=head,
        old=b.old.double(),
        advantages=b.advantages.double(),
        mask=b.mask.double(),
    )


def tied_update(b: Batch, loss: Loss) -> Tensor:
    hidden = responses(b) + F.embedding(b.targets, b.weight)
    return loss(log_probs(hidden, b.weight, b.targets), b)


PRODUCTS = (torch.ops.aten.mm.default, compat.added_mm())


def gradients(
    run: Callable[[Batch, Loss], Tensor], b: Batch, loss: Loss, scale: float
) -> list[Tensor]:
    made = run(b, loss)
    return [made.detach(), *torch.autograd.grad(made * scale, [b.hidden, b.weight])]


class InductorCutter(compat.CustomPartitionerFn):
    """Cuts the head and leaves the rest to torch's partitioner."""

    def __init__(self, chunks: int, totals: Totals = "gradient") -> None:
        self.chunks = chunks
        self.totals = totals

    def __call__(
        self, gm: GraphModule, joint_inputs: Any, **keywords: Any
    ) -> tuple[GraphModule, GraphModule]:
        prepare(gm)
        if self.chunks:
            rewrite_head(gm, site(gm), self.chunks, self.totals)
        with torch._functorch.config.patch(cse=False):  # or what is rebuilt would be kept instead
            halves = compat.default_partition(gm, joint_inputs, **keywords)
        for half in halves:
            keep_order(half, ())
        return halves

    def uuid(self) -> None:
        return None

    def __deepcopy__(self, memo: Any) -> InductorCutter:
        return self

    def __reduce__(self) -> Any:
        return InductorCutter, (self.chunks, self.totals)


def inductor(chunks: int, totals: Totals = "gradient") -> Callable[[GraphModule, Any], Any]:
    patches = {"custom_partitioner_fn": InductorCutter(chunks, totals), "fx_graph_cache": False}
    return lambda gm, inputs: compat.compile_fx(gm, inputs, config_patches=patches)


@pytest.mark.parametrize("loss", [ppo, gspo])
def test_one_dynamic_graph_serves_other_lengths(loss: Loss) -> None:
    plain = Plain(chunks=3)
    run = plain.compile(update, dynamic=True)
    for tokens in (7, 11, 3):
        b = batch(sequences=tokens - 1, tokens=tokens)
        assert_close(gradients(run, b, loss, 0.5), gradients(update, b, loss, 0.5))
    assert len(plain.joint) == 1


def test_fewer_rows_than_chunks() -> None:
    plain = Plain(chunks=8)
    b = batch(sequences=1, tokens=3)
    assert_close(gradients(plain.compile(update), b, ppo, 1.0), gradients(update, b, ppo, 1.0))


@pytest.mark.compat
@pytest.mark.parametrize(("loss", "dynamic"), [(ppo, False), (gspo, True)])
def test_inductor_computes_the_same(loss: Loss, dynamic: bool) -> None:
    torch._dynamo.reset()
    b = batch(sequences=3, tokens=15, dtype=torch.float32)  # 45 rows: a chunk of 23, and one of 22
    run = torch.compile(update, backend=inductor(2), dynamic=dynamic)
    exact = batch(sequences=3, tokens=15)
    assert_close(
        [value.double() for value in gradients(run, b, loss, 1.0)],
        gradients(update, exact, loss, 1.0),
        relative=3e-6,
    )


@pytest.mark.compat
@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("loss", "is_tied"), [(ppo, False), (gspo, True)])
def test_inductor_holds_one_chunk_of_logits_and_one_weight_gradient(
    loss: Loss, is_tied: bool
) -> None:
    """Their gradient is written over the logits, and every chunk's product is added in place.

    Early and rebuilt. Were the logits of all chunks made first, there would be four.
    """
    torch._dynamo.reset()
    b = batch(sequences=4, tokens=16, vocabulary=600, dtype=torch.bfloat16)
    run = torch.compile(tied_update if is_tied else update, backend=inductor(4))
    _, codes = run_and_get_code(lambda: gradients(run, b, loss, 1.0))
    code = codes[0] if loss is ppo else codes[1]
    assert most_alive(code, "(16, 600)") == 1
    assert is_tied or most_alive(code, "(600, 8)") == 1  # the embedding's gradient has that shape
    added = re.findall(r"extern_kernels\.addmm\((buf\d+), .*out=(buf\d+)\)", code)
    assert len(added) == 3
    assert all(total == out for total, out in added)


@pytest.mark.compat
def test_a_total_that_others_read_later_is_not_overwritten() -> None:
    """The operator is a function: in place is how it is compiled where nobody can tell."""
    torch._dynamo.reset()
    added_mm, left, right = compat.added_mm(), torch.ones(3, 2), torch.ones(2, 4)

    def twice(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first = left @ right
        second = added_mm(first, left, right)
        return second + 1, first.view(4, 3) * 2

    second, first = torch.compile(twice, backend="inductor")(left, right)
    torch.testing.assert_close(second, torch.full((3, 4), 5.0))
    torch.testing.assert_close(first, torch.full((4, 3), 4.0))


def most_alive(code: str, shape: str) -> int:
    """Buffers of a shape that a wrapper of Inductor holds at once, at most."""
    alive: set[str] = set()
    most = 0
    for line in code.splitlines():
        for made, of in re.findall(
            r"(buf\d+) = (?:reinterpret_tensor\()?(buf\d+|empty_strided_cpu)", line
        ):
            if of in alive or (of == "empty_strided_cpu" and f"({shape}" in line):
                alive.add(made)
        alive -= set(re.findall(r"del (buf\d+)", line))
        most = max(most, len(alive))
    return most


def test_a_tangent_of_one_changes_no_bit_in_bfloat16() -> None:
    b = batch(dtype=torch.bfloat16)
    whole = capture(lambda: update(b, ppo))
    cut = whole.cut(1)
    for mine, theirs in zip(whole.outputs(cut)[1:], whole.outputs()[1:], strict=True):
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


def test_the_tangent_is_not_rounded_to_bfloat16() -> None:
    """One third in bfloat16 is 0.2% too large: every gradient would be, alike."""
    b = batch(dtype=torch.bfloat16)
    whole = capture(lambda: update(b, ppo))

    def weight_gradient(scale: float) -> Tensor:
        outputs = whole.outputs(whole.cut(2), scale=scale)
        (found,) = (v for v in outputs if v is not None and v.shape == b.weight.shape)
        return found.double()  # type: ignore[no-any-return]

    one, third = weight_gradient(1.0), weight_gradient(1 / 3)
    ratios = (3 * third / one)[one != 0]
    assert ratios.numel() > 1000
    assert abs(ratios.mean().item() - 1) < 2e-4


@pytest.mark.compat
def test_float32_totals_are_rounded_once() -> None:
    """Of 32 chunks, each one's bfloat16 total is rounded; a float32 total is as good as one chunk."""
    b = batch(sequences=16, tokens=64, vocabulary=64, dtype=torch.bfloat16)
    whole = capture(lambda: update(b, ppo))
    doubled = wider(b)
    exact = capture(lambda: update(doubled, ppo))

    def error(chunks: int, totals: Totals) -> float:
        gm = copy.deepcopy(whole.gm)
        rewrite_head(gm, site(gm), chunks, totals)
        found, right = (
            next(v.double() for v in outputs if v is not None and v.shape == b.weight.shape)
            for outputs in (whole.outputs(gm), exact.outputs())
        )
        return float((found - right).norm() / right.norm())

    once, often, wide = error(1, "gradient"), error(32, "gradient"), error(32, "float32")
    assert wide < 1.02 * once
    assert often > 1.2 * once


@pytest.mark.compat
def test_float32_totals_through_inductor() -> None:
    torch._dynamo.reset()
    b = batch(sequences=4, tokens=16, vocabulary=600, dtype=torch.bfloat16)
    run = torch.compile(update, backend=inductor(2, "float32"))
    (found, expected), codes = run_and_get_code(
        lambda: (gradients(run, b, ppo, 1.0), gradients(update, b, ppo, 1.0))
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine - theirs).double().norm() < 0.01 * theirs.double().norm()
    added = re.findall(r"extern_kernels\.addmm\((buf\d+), .*out=(buf\d+)\)", codes[0])
    assert [total == out for total, out in added] == [True]


@pytest.mark.parametrize("loss", [ppo, gspo])
def test_a_chunk_waits_for_the_one_before(loss: Loss) -> None:
    """Its logits come after every product of the chunk before, in forward and in backward."""
    plain = Plain(chunks=4)
    b = batch()
    gradients(plain.compile(update), b, loss, 1.0)
    for half in plain.halves[0]:
        keep_order(half, ())
        products = [node for node in half.graph.nodes if node.target in PRODUCTS]
        logits = [i for i, node in enumerate(products) if node.meta["val"].shape == (4, 503)]
        assert len(logits) in (0, 3)  # of four chunks; the last one is shorter
        for start in logits[1:]:
            assert products[start - 1] in _before(products[start])


def _before(node: Node) -> set[Node]:
    """What is there before a node is: what it reads, directly or not, and what ties make it wait for."""
    found: set[Node] = set()
    todo = [node]
    while todo:
        current = todo.pop()
        ties = [user for user in current.users if _holds(user, current)]
        new = {current, *current.all_input_nodes, *ties} - found
        found |= new
        todo.extend(new)
    return found


def _holds(tie: Node, node: Node) -> bool:
    return tie.target is compat.held_after() and tie.args[0] is node
