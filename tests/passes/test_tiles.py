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
from hilore_planner.passes.codecs.floats import WHOLE_ROW, Fp8E4M3

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


def _block(code: str) -> tuple[int, int]:
    found = re.findall(r"fixed_config\(\s*config=\{'XBLOCK': (\d+), 'num_warps': (\d+)\}", code)
    assert len(found) == 1
    return int(found[0][0]), int(found[0][1])


@pytest.mark.parametrize("name", _CODECS)
def test_a_group_is_read_once_in_a_block_that_was_decided(name: str) -> None:
    x, _ = _inputs()
    codec = codec_named(name)
    found, code = _compiled(lambda x: codec.encode(x * 2), x, **compat.WHOLE_COPIES)
    assert _block(code) == (8, 2)
    assert "for r0_offset in" not in code
    wrong = codec.decode(found, torch.float32) - 2 * x.float()
    assert wrong.norm() / (2 * x.float()).norm() < 1.05 * codec.relative_error


def test_of_several_values_blocks_are_larger() -> None:
    x, _ = _inputs()
    codec = codec_named("fp8_e4m3")
    _, code = _compiled(
        lambda x: (*codec.encode(x * 2), *codec.encode(x.sin())), x, **compat.WHOLE_COPIES
    )
    assert _block(code) == (16, 4)


def test_of_tables_a_thread_reads_what_lies_together() -> None:
    x, table = _inputs()
    codec = codec_named("fp8_e4m3")
    _, code = _compiled(lambda x, t: codec.encode(_turned(x, t)), x, table, **compat.WHOLE_COPIES)
    assert _block(code) == (4, 2)


def test_rows_with_one_scale_are_read_once() -> None:
    x = torch.randn(640, 1536, device="cuda", dtype=torch.bfloat16)
    codec = Fp8E4M3(group=WHOLE_ROW)
    found, code = _compiled(lambda x: codec.encode(x * 2), x, **compat.WHOLE_COPIES)
    assert "persistent_reduction(" in code
    assert "fixed_config(" not in code
    wrong = codec.decode(found, torch.float32) - 2 * x.float()
    assert wrong.norm() / (2 * x.float()).norm() < 1.05 * codec.relative_error


@pytest.mark.parametrize(
    "options", [{}, {**compat.WHOLE_COPIES, "max_autotune_pointwise": True}], ids=["other", "tuned"]
)
def test_other_graphs_and_those_that_are_tuned_find_their_own(options: dict[str, Any]) -> None:
    x, _ = _inputs()
    codec = codec_named("fp8_e4m3")
    _, code = _compiled(lambda x: codec.encode(x * 2), x, **options)
    assert "fixed_config(" not in code
