"""A loss that says its coefficients are its tokens' own lets the head be cut without a second pass."""

from __future__ import annotations

import pytest
from torch import Tensor

from hilore_planner.grpo.base import PolicyLoss
from hilore_planner.grpo.batch import LossBatch
from hilore_planner.grpo.head import log_probs
from tests.grpo.batches import plain
from tests.head.heads import assert_close, batch, capture, responses, site

NAMES = (
    "trl/dapo",
    "trl/grpo",
    "trl/cispo",
    "trl/vespo",
    "verl/vanilla",
    "verl/sapo",
    "verl/gspo",
    "verl/geo_mean",
    "openrlhf/gspo",
    "torchtitan/dapo",
)


@pytest.mark.parametrize("loss", [plain(name) for name in NAMES], ids=str)
def test_the_head_is_cut_early_unless_the_loss_couples_tokens(loss: PolicyLoss) -> None:
    b = batch()

    def update() -> Tensor:
        made = log_probs(responses(b), b.weight, b.targets)
        numbers = LossBatch(advantages=b.advantages, mask=b.mask, old_log_probs=b.old)
        return loss.loss(made, numbers)

    joint = capture(update)
    assert site(joint.gm).form == ("rebuild" if loss.traits.coupled else "early")
    assert_close(joint.outputs(joint.cut(3)), joint.outputs())
