"""``log_probs`` computes what its docstring says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hilore_planner.errors import OptionError
from hilore_planner.grpo.head import log_probs


def small(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linspace(-2, 2, steps=torch.Size(shape).numel(), dtype=dtype).view(shape)


def test_it_is_log_softmax_of_capped_tempered_logits() -> None:
    hidden, weight, bias = small(2, 3, 4), small(7, 4).sin(), small(7)
    targets = torch.tensor([[0, 6, 3], [1, 1, 5]])
    logits = 3 * torch.tanh((hidden @ weight.t() + bias) / 3) / 0.5
    expected = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
    got = log_probs(hidden, weight, targets, temperature=0.5, bias=bias, softcap=3.0)
    torch.testing.assert_close(got, expected)


def test_bfloat16_gives_float32() -> None:
    hidden, weight = small(3, 4, dtype=torch.bfloat16), small(7, 4, dtype=torch.bfloat16)
    assert log_probs(hidden, weight, torch.tensor([0, 1, 2])).dtype is torch.float32


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"temperature": 0.0}, "temperature: 0.0"),
        ({"softcap": -1.0}, "softcap: -1.0"),
        ({"weight": small(7, 5)}, r"\(7, 5\)"),
        ({"targets": torch.tensor([0, 1])}, r"targets of shape \(2,\)"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, object], says: str) -> None:
    fine = {"hidden": small(2, 3, 4), "weight": small(7, 4), "targets": torch.zeros(2, 3).long()}
    with pytest.raises(OptionError, match=says):
        log_probs(**{**fine, **changed})  # type: ignore[arg-type]
