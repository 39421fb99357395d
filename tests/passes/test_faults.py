"""Each fault is found in a small model that has it, and in none that has not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hilore_planner.advice import Advice
from hilore_planner.composition import vocabulary_size
from hilore_planner.offline.capture import capture
from hilore_planner.passes import compat
from hilore_planner.passes.devices import PROFILES
from hilore_planner.passes.faults import find_faults
from hilore_planner.passes.graph import normalise

ROWS, COLUMNS, WIDTH, HEADS, VOCABULARY = 2, 256, 128, 4, 2048
HALF = torch.bfloat16
H200 = PROFILES["h200"]

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def _masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(COLUMNS, COLUMNS, dtype=torch.bool, device=q.device).tril()
    return scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])


def _by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    output: Tensor = scores.float().softmax(-1).to(q.dtype) @ v
    return output


def _head(hidden: Tensor, weight: Tensor) -> Tensor:
    return (hidden @ weight.t()).float()


def _wide_head(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden.float() @ weight.float().t()


def _copied_head(hidden: Tensor, weight: Tensor) -> Tensor:
    return (hidden @ weight.t().contiguous()).float()


class _Norm(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (self.weight * normal.to(self.weight.dtype)).to(x.dtype)


@dataclass(frozen=True, slots=True)
class _Parts:
    attention: Attention = _causal
    head: Callable[[Tensor, Tensor], Tensor] = _head
    norm_dtype: torch.dtype = HALF


class _Model(nn.Module):
    """Two layers of attention between an embedding and a head, as `parts` say."""

    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self.parts = parts
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, dtype=HALF)
        self.mix = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, dtype=HALF) for _ in range(2))
        self.norms = nn.ModuleList(_Norm(parts.norm_dtype) for _ in range(2))
        self.out = nn.Parameter(torch.empty(VOCABULARY, WIDTH, dtype=HALF))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for norm, mix in zip(self.norms, self.mix, strict=True):
            q, k, v = (
                part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                for part in mix(norm(x)).chunk(3, dim=-1)
            )
            x = x + self.parts.attention(q, k, v).transpose(1, 2).flatten(2)
        logits = self.parts.head(x, self.out)
        return (logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)).sum()


def _faults(parts: _Parts) -> tuple[Advice, ...]:
    with compat.new_fake_mode():
        model, ids = _Model(parts), torch.zeros(ROWS, COLUMNS, dtype=torch.int64)
    captured = capture(model, (ids,), attention="cudnn")
    joint = normalise(
        captured.gm,
        num_forward_outputs=captured.num_forward_outputs,
        static_input_indices=captured.static_input_indices,
    )
    return find_faults(joint, H200, vocabulary_size(joint))


def test_a_model_without_faults() -> None:
    assert _faults(_Parts()) == ()


SCORES = ROWS * HEADS * COLUMNS**2
"""Elements of one layer's scores."""


@pytest.mark.parametrize(
    ("parts", "what", "count", "size_bytes"),
    [
        # Each layer makes its own; booleans become numbers to add, in the dtype of the query.
        (_Parts(attention=_masked), "attention with an explicit mask", 2, 2 * 2 * COLUMNS**2),
        (_Parts(attention=_by_hand), "attention that is not fused", 2, 2 * 2 * SCORES),
        (
            _Parts(head=_wide_head),
            "logits multiplied in fp32",
            1,
            4 * ROWS * COLUMNS * VOCABULARY,
        ),
        (_Parts(head=_copied_head), "a copy of the head's weight", 1, 2 * VOCABULARY * WIDTH),
        (
            _Parts(norm_dtype=torch.float32),
            "a norm multiplied by its weight in fp32",
            2,
            2 * 4 * ROWS * COLUMNS * WIDTH,
        ),
    ],
)
def test_a_fault(parts: _Parts, what: str, count: int, size_bytes: int) -> None:
    found = {advice.what: advice for advice in _faults(parts)}
    if parts.head is _wide_head:
        assert found.pop("a copy of the head's weight").count == 1  # it comes with the other
    (advice,) = found.values()
    assert (advice.what, advice.count, advice.size_bytes) == (what, count, size_bytes)
    assert advice.source.startswith("test_faults.py:")
    assert advice.remedy


def test_the_time_of_a_mask_is_half_of_the_arithmetic() -> None:
    (advice,) = _faults(_Parts(attention=_masked))
    # Two products forward and five backward of HEADS heads, in each of two layers.
    arithmetic = 2 * (2 + 5) * 2 * ROWS * COLUMNS**2 * WIDTH
    assert advice.time_ns == pytest.approx(1e9 * arithmetic / 2 / H200.half_flops_per_second, abs=8)


def test_the_costliest_comes_first() -> None:
    parts = _Parts(_by_hand, _wide_head, torch.float32)
    times = [advice.time_ns or 0 for advice in _faults(parts)]
    assert len(times) == 4
    assert times == sorted(times, reverse=True)
