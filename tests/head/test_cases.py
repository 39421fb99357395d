"""Public reports about heads, and heads that are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hilore_planner.errors import OptionError
from hilore_planner.grpo.head import log_probs
from hilore_planner.passes.head import (
    HeadRefusal,
    head_flops,
    plan_head,
    rewrite_head,
)
from tests.head.heads import (
    Batch,
    Plain,
    assert_close,
    batch,
    capture,
    entropy,
    logsumexp_gather,
    ppo,
    prepare,
    responses,
    site,
    wide_alive,
)
from tests.head.test_forms import logits_of, plain, sequence_softmax

ROWS, HIDDEN, VOCABULARY = 4096, 2048, 151_936


def large(*, dynamic: bool) -> Plain:
    """The joint graph of a head of real size, on fake tensors."""
    plain = Plain(chunks=8)

    def update(hidden: Tensor, weight: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
        return -(log_probs(hidden * 1.5, weight, targets) * scale).sum() / scale.sum()

    with FakeTensorMode():
        hidden = torch.empty(ROWS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.nn.Parameter(torch.empty(VOCABULARY, HIDDEN, dtype=torch.bfloat16))
        targets = torch.empty(ROWS, dtype=torch.int64)
        scale = torch.empty(ROWS)
        if dynamic:
            for value in (hidden, targets, scale):
                torch._dynamo.mark_dynamic(value, 0)
        plain.compile(update, dynamic=dynamic or None)(hidden, weight, targets, scale)  # type: ignore[arg-type]
    return plain


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_head_of_real_size_is_cut(dynamic: bool) -> None:
    """A public report: hidden (4096, 2048), 152k tokens, static and dynamic number of tokens."""
    plain = large(dynamic=dynamic)
    (joint,) = plain.joint
    (forward, backward) = plain.halves[0]
    rows = ROWS // 8
    gradient = HIDDEN  # rows of logits that the weight's gradient is as large as
    # at once: the old total and the new one (one memory when compiled), a chunk's gradient of logits, the
    # vocabulary's numbers
    assert wide_alive(forward, VOCABULARY)[0] == 2 * gradient + rows + 1
    assert wide_alive(backward, VOCABULARY)[0] <= 2 * gradient
    assert wide_alive(joint, VOCABULARY)[0] >= 3 * ROWS
    assert site(joint).form == "early"


def test_nothing_of_vocabulary_size_is_saved() -> None:
    plain = large(dynamic=False)
    forward, _ = plain.halves[0]
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    handed = [node.meta["val"] for node in output.all_input_nodes]
    assert sorted(tuple(value.shape) for value in handed if value.numel() > ROWS) == [
        (ROWS, HIDDEN),
        (VOCABULARY, HIDDEN),
    ]


def test_operations_of_a_head_of_real_size() -> None:
    found = site(large(dynamic=False).joint[0])
    assert head_flops(found) == 6 * ROWS * VOCABULARY * HIDDEN


def test_rebuilding_costs_one_matmul_more() -> None:
    b = batch()
    found = site(capture(lambda: log_probs(responses(b), b.weight, b.targets)).gm)
    assert head_flops(found) == 8 * b.targets.numel() * b.weight.numel()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_exponentials_of_half_logits_are_powers_of_two(dtype: torch.dtype) -> None:
    """Log-probabilities, which are float32, do not suffer from it."""
    b = batch(dtype=dtype)
    whole = capture(lambda: log_probs(responses(b), b.weight, b.targets))
    cut = whole.cut(2)
    powers = [n for n in cut.graph.nodes if n.target is torch.ops.aten.exp2.default]
    assert len(powers) == (4 if dtype is torch.bfloat16 else 0)  # two chunks, there and back
    assert_close(whole.outputs(cut)[:1], whole.outputs()[:1], relative=1e-6)


def test_returned_logits_are_refused() -> None:
    """A public report: logits go to the caller, who takes the loss outside."""
    b = batch()

    def update() -> tuple[Tensor, Tensor]:
        logits = logits_of(b)
        return ppo(logsumexp_gather(logits, b.targets), b), logits

    found = plan_head(capture(update).gm)
    assert isinstance(found, HeadRefusal)
    assert "return log-probabilities" in found.reason


def test_an_entropy_nobody_differentiates_is_flagged() -> None:
    """A public report: vocabulary-sized values saved for an entropy that is only logged."""
    b = batch()

    def update(detach: bool) -> tuple[Tensor, Tensor]:
        logits = logits_of(b)
        logged = entropy(logits)
        return ppo(logsumexp_gather(logits, b.targets), b), logged.detach() if detach else logged

    detached = site(capture(lambda: update(True)).gm)
    assert detached.form == "early"
    # the normaliser of the entropy's own softmax, and the entropy itself
    assert [node.target for node in detached.logging_only] == [torch.ops.aten.sum.dim_IntList] * 2
    assert (
        site(capture(lambda: ppo(logsumexp_gather(logits_of(b), b.targets), b)).gm).logging_only
        == ()
    )
    returned = site(capture(lambda: update(False)).gm)
    assert "PlainAOTOutput(idx=1)" in returned.why_rebuild
    assert "detach" in returned.why_rebuild


def test_a_float16_gradient_is_not_taken_before_its_loss_scale() -> None:
    b = batch(dtype=torch.float16)
    found = site(capture(lambda: ppo(log_probs(responses(b), b.weight, b.targets), b)).gm)
    assert found.form == "rebuild"
    assert "float16" in found.why_rebuild


def test_of_two_heads_the_second_call_finds_the_other() -> None:
    b = batch()

    def update() -> Tensor:
        hidden = responses(b)
        draft = log_probs(hidden[:, :-1] * 0.5, b.weight, b.targets[:, 1:])
        return ppo(log_probs(hidden, b.weight, b.targets), b) - draft.mean()

    whole = capture(update)
    once = whole.cut(3)
    assert site(once).rows == 12
    rewrite_head(once, site(once), 5)
    assert isinstance(plan_head(once), HeadRefusal)
    assert_close(whole.outputs(once, scale=0.5), whole.outputs(scale=0.5))


def test_a_model_without_head() -> None:
    b = batch()
    found = plan_head(capture(lambda: F.gelu(responses(b) @ b.weight.t()).square().mean()).gm)
    assert isinstance(found, HeadRefusal)
    assert found.node is None


def test_logits_that_mix_rows_are_refused() -> None:
    b = batch()

    def update() -> Tensor:
        logits = logits_of(b)
        return ppo(logsumexp_gather(logits - logits.mean(1, keepdim=True), b.targets), b)

    found = plan_head(capture(update).gm)
    assert isinstance(found, HeadRefusal)
    assert "mean.dim" in found.reason


def test_a_number_of_chunks_below_one() -> None:
    b = batch()
    gm = capture(lambda: ppo(log_probs(responses(b), b.weight, b.targets), b)).gm
    with pytest.raises(OptionError, match="0 is not a number of chunks"):
        rewrite_head(gm, site(gm), 0)


def test_planning_changes_nothing() -> None:
    b = batch()
    gm = capture(lambda: ppo(log_probs(responses(b), b.weight, b.targets), b)).gm
    before = str(gm.graph)
    plan_head(gm)
    assert str(gm.graph) == before
    prepare(gm)
    assert str(gm.graph) == before


@pytest.mark.parametrize("vocabulary", [32_000, 50_257, 128_256, 151_936, 100_003])
@pytest.mark.parametrize("update", [plain, sequence_softmax])
def test_vocabularies_of_real_models(update: Callable[[Batch], Tensor], vocabulary: int) -> None:
    b = batch(tokens=3, prompt=1, hidden=4, vocabulary=vocabulary)
    whole = capture(lambda: update(b))
    assert_close(whole.outputs(whole.cut(2), scale=0.5), whole.outputs(scale=0.5))


def test_a_target_outside_of_the_vocabulary_is_not_taken_for_one_inside() -> None:
    """``gather`` would fail on it; the comparison that stands for it says so in its own way."""
    b = batch()
    whole = capture(lambda: log_probs(responses(b), b.weight, b.targets))
    b.targets[0, 1] = 503
    logp, *_ = whole.outputs(whole.cut(2))
    assert logp.isnan().nonzero().tolist() == [[0, 1]]


def test_the_loss_of_transformers() -> None:
    """Logits of the whole sequence, labels shifted and padded with -100, a given number of tokens."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    b = batch(dtype=torch.float32)
    labels = torch.full(b.hidden.shape[:2], -100)
    labels[:, 2:] = torch.where(b.mask > 0, b.targets, -100)

    def update() -> Tensor:
        logits = torch.tanh(b.hidden) @ b.weight.t()
        return ForCausalLMLoss(logits, labels, vocab_size=503, num_items_in_batch=labels.numel())  # type: ignore[arg-type]

    whole = capture(update)
    assert site(whole.gm).form == "early"
    assert_close(whole.outputs(whole.cut(3)), whole.outputs(), relative=1e-6)
