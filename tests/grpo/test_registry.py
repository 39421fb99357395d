from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.batch import LossBatch, pad_packed, require
from hilore_planner.grpo.masks import high_entropy, importance_weights, mask_truncated
from hilore_planner.grpo.registry import LOSSES, make_loss
from tests.grpo.batches import plain, random_batch

TRL = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
VERL = ("vanilla", "gspo", "sapo", "gpg", "cispo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov")
OTHERS = ("verl/geo_mean", "verl/dro", "openrlhf/ppo", "openrlhf/gspo", "torchtitan/dapo")


def test_names() -> None:
    assert set(LOSSES) == {*(f"trl/{n}" for n in TRL), *(f"verl/{n}" for n in VERL), *OTHERS}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("trl/ppo", {}, "loss is 'trl/ppo'; accepted: trl/grpo, "),
        ("trl/dapo", {"eps": 0.1}, "an option of trl/dapo is 'eps'; accepted: importance_samp"),
        ("trl/dapo", {"loss_type": "grpo"}, "an option of trl/dapo is 'loss_type'"),
        ("trl/dapo", {"importance_sampling_level": "row"}, "accepted: token, sequence"),
        ("trl/dapo", {"epsilon": -0.1}, "epsilon is -0.1; accepted: >= 0.0"),
        ("trl/dapo", {"delta": 0.0}, "delta is 0.0; accepted: > 0.0"),
        ("trl/dapo", {"top_entropy_quantile": 1.5}, "accepted: 0.0 to 1.0"),
        ("trl/dapo", {"steps_per_generation": 0}, "steps_per_generation is 0; accepted: >= 1"),
        ("verl/vanilla", {"clip_ratio_c": 1.0}, "clip_ratio_c is 1.0; accepted: > 1.0"),
        ("verl/vanilla", {"loss_agg_mode": "mean"}, "loss_agg_mode is 'mean'; accepted: token-me"),
        ("verl/vanilla", {"kl_loss_type": "full"}, "kl_loss_type is 'full'; accepted: kl, k1"),
        ("verl/dro", {}, "dro_beta is None; accepted with loss_mode 'dro'"),
        ("openrlhf/ppo", {"dual_clip": 1.0}, "dual_clip is 1.0; accepted: > 1.0"),
        (
            "openrlhf/ppo",
            {"is_correction_mode": "clip", "is_correction_level": "seq"},
            "is_correction_mode 'clip' is accepted only",
        ),
        (
            "openrlhf/ppo",
            {"is_correction_gating": "tv", "is_correction_level": "seq"},
            "accepted with is_correction_gating 'tv': a lower bound of 0",
        ),
        ("torchtitan/dapo", {"ratio_clip_low": -1.0}, "ratio_clip_low is -1.0"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        make_loss(name, **options)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(3)}, r"mask has shape \(3,\); accepted: \(B, T\)"),
        ({"advantages": torch.ones(4)}, r"advantages has shape \(4,\)"),
        ({"old_log_probs": torch.ones(3, 1)}, r"old_log_probs has shape \(3, 1\)"),
        ({"is_weights": torch.ones(3)}, r"is_weights has shape \(3,\).*\(3, 2\) or \(3, 1\)"),
    ],
)
def test_bad_batches(change: dict[str, Tensor], message: str) -> None:
    fields = {"advantages": torch.ones(3), "mask": torch.ones(3, 2), **change}
    with pytest.raises(OptionError, match=message):
        LossBatch(**fields)


def test_what_a_loss_reads_must_be_there() -> None:
    batch = LossBatch(advantages=torch.ones(2), mask=torch.ones(2, 3))
    with pytest.raises(OptionError, match="beta reads ref_log_probs"):
        make_loss("trl/dapo", beta=0.1).loss(torch.zeros(2, 3), batch)
    with pytest.raises(OptionError, match="reads old_log_probs"):
        make_loss("trl/dapo", beta=0.1).on_policy_coefficient(batch)
    with pytest.raises(OptionError, match="entropies"):
        make_loss("verl/gpg", entropy_coeff=0.1).loss(torch.zeros(2, 3), batch)
    with pytest.raises(OptionError, match="sampling_log_probs"):
        require(batch, "sampling_log_probs", "a test")


def test_cu_seqlens_that_do_not_fit() -> None:
    for bad in ([0, 2], [1, 4], [0, 3, 2, 4], [0]):
        with pytest.raises(OptionError, match="ascending"):
            pad_packed(torch.zeros(4), torch.tensor(bad))


def test_a_truncated_completion_stays_a_row() -> None:
    batch = LossBatch(advantages=torch.ones(2), mask=torch.ones(2, 3))
    masked = mask_truncated(batch, torch.tensor([False, True]))
    grpo = make_loss("trl/grpo")
    assert grpo.token_weights(masked).tolist() == [[pytest.approx(1 / 6)] * 3, [0.0] * 3]


def test_sequence_mask_drops_whole_sequences() -> None:
    batch = LossBatch(
        advantages=torch.ones(2),
        mask=torch.ones(2, 2),
        old_log_probs=torch.tensor([[0.0, 1.0], [0.1, 0.1]]),
        sampling_log_probs=torch.tensor([[-0.5, 0.0], [0.0, float("nan")]]),
    )
    weights = importance_weights(batch, mode="sequence_mask")
    assert weights.tolist() == [[0.0], [pytest.approx(1.1051709)]]
    with pytest.raises(OptionError, match="mode is 'row'"):
        importance_weights(batch, mode="row")


def test_text_and_dtype() -> None:
    assert str(make_loss("trl/grpo", beta=0.1)) == "TRLLoss(loss_type='grpo', beta=0.1)"
    batch = LossBatch(advantages=torch.ones(2).bfloat16(), mask=torch.ones(2, 3).bool())
    assert make_loss("trl/grpo").on_policy_coefficient(batch).dtype == torch.float32


def test_tokens_at_the_entropy_quantile_are_kept() -> None:
    batch = LossBatch(
        advantages=torch.ones(2), mask=torch.tensor([[1, 1], [1, 0]]), entropies=torch.ones(2, 2)
    )
    assert high_entropy(batch, 0.3).tolist() == [[1, 1], [1, 0]]


def test_torchtitan_drops_tokens_without_a_finite_generator_log_prob() -> None:
    old = torch.tensor([[-1.0, float("nan"), -float("inf"), -1.0]])
    batch = LossBatch(
        advantages=torch.ones(1), mask=torch.ones(1, 4), old_log_probs=old, num_tokens=8
    )
    loss, log_probs = make_loss("torchtitan/dapo"), torch.full((1, 4), -1.0).requires_grad_()
    (gradient,) = torch.autograd.grad(loss.loss(log_probs, batch), log_probs)
    assert gradient.tolist() == [[-0.125, 0.0, 0.0, -0.125]]
    assert loss.coefficient(log_probs.detach(), batch).tolist() == gradient.tolist()


TRACEABLE = [n for n in LOSSES if n not in ("verl/clip_cov", "verl/kl_cov")]


@pytest.mark.parametrize("loss", [plain(n) for n in TRACEABLE], ids=str)
def test_traces_into_one_graph(loss: PolicyLoss) -> None:
    case = random_batch(1)
    assert case.batch.old_log_probs is not None

    def update(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        batch = LossBatch(advantages=advantages, mask=mask, old_log_probs=old)
        return loss.loss(log_probs, batch)

    torch.compiler.reset()
    compiled = torch.compile(update, backend="aot_eager", fullgraph=True)
    grads = []
    for function in (update, compiled):
        log_probs = case.log_probs.clone().requires_grad_()
        args = (log_probs, case.batch.old_log_probs, case.batch.advantages, case.batch.mask)
        torch.autograd.backward(function(*args))
        assert log_probs.grad is not None
        grads.append(log_probs.grad)
    assert bool((grads[0] == grads[1]).all())
