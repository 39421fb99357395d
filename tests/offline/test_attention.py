"""Which operator stands for attention, against what torch's CUDA build is known to pick."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hilore_planner.offline.capture import capture
from hilore_planner.passes import compat
from hilore_planner.passes.devices import AttentionKernel
from hilore_planner.passes.ops import op_name

HALF = torch.bfloat16


def _attention_ops(
    kernel: AttentionKernel,
    *,
    dtype: torch.dtype = HALF,
    size: int = 64,
    key_heads: int = 4,
    keys: int = 32,
    mask: torch.dtype | None = None,
    **keywords: Any,
) -> set[str]:
    """Attention operators of the forward and backward of one call."""
    with compat.new_fake_mode():
        query = torch.empty(2, 4, 32, size, dtype=dtype, requires_grad=True)
        key, value = (
            torch.empty(2, key_heads, keys, size, dtype=dtype, requires_grad=True) for _ in "kv"
        )
        bias = None if mask is None else torch.empty(2, 1, 32, keys, dtype=mask)

    def update(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any) -> Any:
        out = scaled_dot_product_attention(query, key, value, attn_mask=bias, **keywords)
        return out.float().square().sum()

    graph = capture(update, (query, key, value, bias), attention=kernel).gm.graph
    names = {op_name(node) for node in graph.nodes if node.op == "call_function"}
    return {name for name in names if name.startswith("_scaled_dot_product") and "[" not in name}


def _both(name: str) -> set[str]:
    return {f"_scaled_dot_product_{name}", f"_scaled_dot_product_{name}_backward"}


CUDNN, FLASH = _both("cudnn_attention"), _both("flash_attention")
EFFICIENT = _both("efficient_attention")
MATH: set[str] = set()
"""No operator of its own: two products and a softmax."""


@pytest.mark.parametrize(
    ("kernel", "expected", "call"),
    [
        ("cudnn", CUDNN, {"is_causal": True}),
        ("cudnn", CUDNN, {"is_causal": True, "key_heads": 2, "enable_gqa": True}),
        ("cudnn", CUDNN, {"mask": torch.bool}),
        ("cudnn", FLASH, {"is_causal": True, "size": 192}),
        ("cudnn", EFFICIENT, {"dtype": torch.float32, "is_causal": True}),
        ("flash", FLASH, {"is_causal": True, "key_heads": 1, "enable_gqa": True}),
        ("flash", FLASH, {"size": 60, "scale": 0.5}),
        ("flash", EFFICIENT, {"mask": torch.bool, "keys": 37}),
        ("flash", EFFICIENT, {"mask": HALF}),
        ("flash", EFFICIENT, {"is_causal": True, "keys": 16}),
        ("flash", MATH, {"mask": HALF, "key_heads": 2, "enable_gqa": True}),
        ("flash", MATH, {"size": 260, "dtype": torch.float32, "key_heads": 2, "enable_gqa": True}),
        ("cpu", _both("flash_attention_for_cpu"), {"is_causal": True}),
    ],
)
def test_the_operator(kernel: AttentionKernel, expected: set[str], call: dict[str, Any]) -> None:
    assert _attention_ops(kernel, **call) == expected
