"""Sigmoids of half-precision values are made of powers of two on a GPU, and of nothing else anywhere else."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from hilore_planner.passes.powers import write_powers

pytestmark = pytest.mark.compat

aten, prims = torch.ops.aten, torch.ops.prims


def _wide(x: Tensor) -> Tensor:
    wide: Tensor = prims.convert_element_type(x, torch.float32)
    return wide


def _silu(x: Tensor) -> Tensor:
    wide = _wide(x)
    narrow: Tensor = prims.convert_element_type(wide / (wide.neg().exp() + 1), x.dtype)
    return narrow


def _traced(function: object, dtype: torch.dtype, device: str) -> GraphModule:
    with FakeTensorMode():
        return make_fx(function)(torch.empty(8, 64, dtype=dtype, device=device))  # type: ignore[arg-type]


def _targets(gm: GraphModule) -> list[object]:
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sigmoid_of_half_precision_is_of_a_power_of_two(dtype: torch.dtype) -> None:
    gm = _traced(_silu, dtype, "cuda")
    assert write_powers(gm) == 1
    targets = _targets(gm)
    assert aten.exp2.default in targets
    assert aten.exp.default not in targets
    assert aten.neg.default not in targets
    assert write_powers(gm) == 0


@pytest.mark.parametrize(
    ("function", "dtype", "device"),
    [
        (_silu, torch.bfloat16, "cpu"),
        (lambda x: x / (x.neg().exp() + 1), torch.float32, "cuda"),
        (lambda x: _wide(x).neg().exp(), torch.bfloat16, "cuda"),
        (lambda x: _wide(x).exp() + 1, torch.bfloat16, "cuda"),
        (lambda x: _wide(x).neg().exp() + 2, torch.bfloat16, "cuda"),
    ],
    ids=["on a CPU", "of float32", "no sum", "no negation", "another sum"],
)
def test_other_exponentials_stay(function: object, dtype: torch.dtype, device: str) -> None:
    gm = _traced(function, dtype, device)
    assert write_powers(gm) == 0
    assert aten.exp.default in _targets(gm)


def test_nothing_changes_where_rounding_is_to_be_as_in_eager() -> None:
    gm = _traced(_silu, torch.bfloat16, "cuda")
    with torch._inductor.config.patch(emulate_precision_casts=True):
        assert write_powers(gm) == 0
    assert write_powers(gm) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_the_same_function_of_every_value(dtype: torch.dtype) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    every = bits.view(dtype).view(-1, 64)
    gm = _traced(_silu, dtype, "cuda")
    write_powers(gm)
    wide = every.double()
    expected = wide / (wide.neg().exp() + 1)
    half_a_step = torch.finfo(dtype).eps * 0.51
    torch.testing.assert_close(
        gm(every).double(), expected, rtol=half_a_step, atol=1e-7, equal_nan=True
    )
