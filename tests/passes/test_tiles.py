"""Kernels that encode on a GPU read each group of 128 once, in blocks that do not depend on luck."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from hilore_planner.passes import compat
from hilore_planner.passes.codecs import codec_named

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

_CODECS = ["fp8_e4m3", "int8"]


def _turned(x: Tensor, table: Tensor) -> Tensor:
    return (x.float() * table).to(x.dtype)


def _compiled(
    function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor, **options: Any
) -> tuple[tuple[Tensor, ...], str]:
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False, options=options)
    found, code = run_and_get_code(compiled, *inputs)
    return found, "\n".join(code)


def _inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 640, 4, 128, device="cuda", dtype=torch.bfloat16)
    return x, torch.rand(640, 1, 128, device="cuda")


@pytest.mark.parametrize("codec", _CODECS)
def test_a_group_is_read_once_in_a_block_that_was_decided(codec: str) -> None:
    x, _ = _inputs()
    encode = codec_named(codec).encode
    found, code = _compiled(lambda x: encode(x * 2), x, **compat.WHOLE_COPIES)
    assert re.search(r"fixed_config\(\s*config=\{'XBLOCK': 16, 'num_warps': 4\}", code)
    assert "for r0_offset in" not in code
    for mine, its in zip(found, encode(x * 2), strict=True):
        assert torch.equal(mine.float(), its.float())


def test_of_tables_a_thread_reads_what_lies_together() -> None:
    x, table = _inputs()
    encode = codec_named("fp8_e4m3").encode
    _, code = _compiled(lambda x, t: encode(_turned(x, t)), x, table, **compat.WHOLE_COPIES)
    assert re.search(r"fixed_config\(\s*config=\{'XBLOCK': 16, 'num_warps': 8\}", code)


@pytest.mark.parametrize(
    "options", [{}, {**compat.WHOLE_COPIES, "max_autotune_pointwise": True}], ids=["other", "tuned"]
)
def test_other_graphs_and_those_that_are_tuned_find_their_own(options: dict[str, Any]) -> None:
    x, _ = _inputs()
    _, code = _compiled(lambda x: codec_named("fp8_e4m3").encode(x * 2), x, **options)
    assert "fixed_config" not in code
