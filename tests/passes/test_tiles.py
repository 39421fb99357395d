"""Kernels that encode on a GPU read each group of 128 once, in blocks that do not depend on luck."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

from hilore_planner.passes import compat
from hilore_planner.passes.codecs import codec_named
from hilore_planner.passes.codecs.floats import WHOLE_ROW, Fp8E4M3

pytestmark = pytest.mark.compat

_on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
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


@pytest.mark.gpu
@_on_gpu
@pytest.mark.parametrize("name", _CODECS)
def test_a_group_is_read_once_in_a_block_that_was_decided(name: str) -> None:
    x, _ = _inputs()
    codec = codec_named(name)
    found, code = _compiled(lambda x: codec.encode(x * 2), x, **compat.WHOLE_COPIES)
    assert _block(code) == (8, 2)
    assert "for r0_offset in" not in code
    wrong = codec.decode(found, torch.float32) - 2 * x.float()
    assert wrong.norm() / (2 * x.float()).norm() < 1.05 * codec.relative_error


@pytest.mark.gpu
@_on_gpu
def test_of_several_values_blocks_are_larger() -> None:
    x, _ = _inputs()
    codec = codec_named("fp8_e4m3")
    _, code = _compiled(
        lambda x: (*codec.encode(x * 2), *codec.encode(x.sin())), x, **compat.WHOLE_COPIES
    )
    assert _block(code) == (16, 4)


@pytest.mark.gpu
@_on_gpu
def test_of_tables_a_thread_reads_what_lies_together() -> None:
    x, table = _inputs()
    codec = codec_named("fp8_e4m3")
    _, code = _compiled(lambda x, t: codec.encode(_turned(x, t)), x, table, **compat.WHOLE_COPIES)
    assert _block(code) == (4, 2)


@pytest.mark.gpu
@_on_gpu
def test_rows_with_one_scale_are_read_once() -> None:
    x = torch.randn(640, 1536, device="cuda", dtype=torch.bfloat16)
    codec = Fp8E4M3(group=WHOLE_ROW)
    found, code = _compiled(lambda x: codec.encode(x * 2), x, **compat.WHOLE_COPIES)
    assert "persistent_reduction(" in code
    assert "fixed_config(" not in code
    wrong = codec.decode(found, torch.float32) - 2 * x.float()
    assert wrong.norm() / (2 * x.float()).norm() < 1.05 * codec.relative_error


@pytest.mark.gpu
@_on_gpu
@pytest.mark.parametrize(
    "options", [{}, {**compat.WHOLE_COPIES, "max_autotune_pointwise": True}], ids=["other", "tuned"]
)
def test_other_graphs_and_those_that_are_tuned_find_their_own(options: dict[str, Any]) -> None:
    x, _ = _inputs()
    codec = codec_named("fp8_e4m3")
    _, code = _compiled(lambda x: codec.encode(x * 2), x, **options)
    assert "fixed_config(" not in code


@dataclass
class _Graph:
    """What is asked of a graph that Inductor is writing."""

    dtypes: dict[str, torch.dtype]
    numels: dict[str, int]
    sizevars = SimpleNamespace(
        statically_known_leq=operator.le,
        statically_known_geq=operator.ge,
        statically_known_gt=operator.gt,
    )

    def get_dtype(self, name: str) -> torch.dtype:
        return self.dtypes[name]

    def get_numel(self, name: str) -> int:
        return self.numels[name]


def _asked(
    codes: int, table: int, size: int = 128, tiling: tuple[str, ...] = ("x", "r0_"), **options: Any
) -> dict[str, Any]:
    """Keyword arguments of a kernel for 1000 groups that makes ``codes`` from bf16 and ``table`` float32 numbers."""
    made = {f"codes{i}": torch.uint8 for i in range(codes)} | {"scale": torch.bfloat16}
    dtypes = {**made, "x": torch.bfloat16, "table": torch.float32}
    graph: Any = _Graph(dtypes, {"x": 1000 * size, "table": table})
    names = [[SimpleNamespace(name=name) for name in group] for group in (("x", "table"), made)]
    node = SimpleNamespace(read_writes=SimpleNamespace(reads=names[0], writes=names[1]))
    features: Any = SimpleNamespace(
        numel=1000, reduction_numel=size, scheduler_nodes=lambda: [node]
    )
    with V.set_graph_handler(graph), inductor.patch({**compat.WHOLE_COPIES, **options}):
        sizes = [dict.fromkeys(tiling, 1)]
        found: dict[str, Any] = InductorChoices().triton_kernel_kwargs(
            TritonKernel, features, sizes, {}
        )
    return found


@pytest.mark.parametrize(
    ("codes", "table", "block"), [(1, 1000, (8, 2)), (2, 1000, (16, 4)), (2, 1001, (4, 2))]
)
def test_blocks_are_decided_by_what_is_read_and_written(
    codes: int, table: int, block: tuple[int, int]
) -> None:
    asked = _asked(codes, table)
    assert asked["override_persistent_reduction"] is True
    assert asked["fixed_config"].config == {"XBLOCK": block[0], "num_warps": block[1]}


@pytest.mark.parametrize("options", [{}, {"max_autotune": True}], ids=["row", "tuned"])
def test_rows_and_what_is_tuned_are_read_once_in_blocks_that_inductor_finds(
    options: dict[str, Any],
) -> None:
    size = 128 if options else 4096
    assert _asked(1, 1, size, **options) == {"override_persistent_reduction": True}


@pytest.mark.parametrize(
    "other",
    [
        {"codes": 0},
        {"size": 127},
        {"size": 4097},
        {"tiling": ("y", "x", "r0_")},
        {"comprehensive_padding": True},
    ],
    ids=str,
)
def test_other_kernels_are_left_alone(other: dict[str, Any]) -> None:
    assert _asked(**{"codes": 1, "table": 1, **other}) == {}
