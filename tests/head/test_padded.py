"""Heads whose products Inductor has padded: an odd vocabulary stays padded, tokens do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.fx_passes import pad_mm

from hilore_planner.grpo.head import log_probs
from tests.head.heads import Batch, assert_close, batch, capture, ppo, responses, site, wide_alive
from tests.head.test_forms import (
    adapter_head,
    bias,
    drop_in,
    packed,
    plain,
    sequence_level,
    sliced_logits,
    softmax,
)

pytestmark = pytest.mark.compat
ROWS = 14
ROUNDING = 30 * torch.finfo(torch.float32).eps
"""Of a probability: logits are up to 30, and a chunk's may be summed in another order."""


@pytest.fixture(autouse=True)
def _always_pad(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU where padding is faster."""
    monkeypatch.setattr(pad_mm, "check_device", lambda *_: True)
    monkeypatch.setattr(pad_mm, "has_triton", lambda: True)
    monkeypatch.setattr(pad_mm, "_should_pad", lambda *_: True)


def frozen(b: Batch) -> Tensor:
    """A batched product: one matrix for all sequences."""
    return ppo(log_probs(responses(b), b.weight.detach(), b.targets), b)


ODD = [plain, softmax, sequence_level, bias, sliced_logits, packed, drop_in, frozen, adapter_head]


@pytest.mark.parametrize(
    ("update", "vocabulary"), [*((update, 509) for update in ODD), (plain, 504), (frozen, 504)]
)
def test_a_padded_head_is_cut(update: Callable[[Batch], Tensor], vocabulary: int) -> None:
    """14 rows, of 7 tokens each: both are padded, and an odd vocabulary is."""
    b = batch(vocabulary=vocabulary, hidden=16, dtype=torch.float32)
    whole = capture(lambda: update(b))
    cut = whole.cut(7)
    assert_close(whole.outputs(cut), whole.outputs(), relative=ROUNDING)
    padded = -(-vocabulary // 4) * 4
    _, longest = wide_alive(cut, padded)
    assert longest <= 16  # the weight's gradient has 16 columns; a chunk of logits has 2 rows
    widths = {n.meta["val"].shape[-1] for n in whole.gm.graph.nodes if _is_padding(n)}
    assert (padded in widths) == (padded != vocabulary)


def test_rows_are_not_padded_for_nothing() -> None:
    b = batch(vocabulary=504, hidden=16, dtype=torch.float32)
    whole = capture(lambda: plain(b))
    assert not any(map(_is_padding, whole.gm.graph.nodes))
    assert site(whole.gm).rows == ROWS


def _is_padding(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten.constant_pad_nd.default
