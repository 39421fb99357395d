"""Encode is done by the kernel that makes or reads the value anyway, decode by the one that reads it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hilore_planner.passes import compat
from hilore_planner.passes.codecs import Codec, Rounding, codec_named
from hilore_planner.peak import capture_wrappers

pytestmark = pytest.mark.compat

_no_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
devices = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, _no_device])]
)
lossy = pytest.mark.parametrize(
    "codec",
    [
        codec_named("int8", "stochastic"),
        codec_named("fp8_e4m3"),
        codec_named("int6", "stochastic"),
    ],
    ids=lambda codec: codec.name,
)
_KERNEL = re.compile(r"^ +(cpp_fused\w*|triton_\w+\.run)\(", re.MULTILINE)
_WORDS = re.compile(r"empty_strided_cpu\(\(([\d, ]+?),? ?\), .*torch\.(?:float|int)32\)")
"""Sizes of buffers of 32-bit values."""

Tensors = tuple[torch.Tensor, ...]


def _compiled(function: Callable[..., Tensors], *inputs: torch.Tensor) -> tuple[Tensors, str]:
    """What the compiled function gives, and its code."""
    torch._dynamo.reset()
    with capture_wrappers() as wrappers:
        result = torch.compile(function, dynamic=False, options={**compat.WHOLE_COPIES})(*inputs)
    (wrapper,) = wrappers
    return result, Path(wrapper.path).read_text()


def _value(device: str, seed: int) -> torch.Tensor:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(seed))
    x[3, 5], x[4, 6] = torch.inf, torch.nan
    return x.to(device)


@devices
@lossy
def test_a_copy_takes_no_kernel_of_its_own(codec: Codec, device: str) -> None:
    """One kernel makes a value and encodes it, one decodes another and reads it."""

    def both(gate: torch.Tensor, up: torch.Tensor, *parts: torch.Tensor) -> Tensors:
        product = gate * up
        return product, *codec.encode(product), codec.decode(parts, torch.float32) * up

    gate, up = _value(device, 0), _value(device, 1)
    inputs = gate, up, *codec.encode(gate)
    (product, *kept, read), code = _compiled(both, *inputs)
    assert len(_KERNEL.findall(code)) <= 2
    expected, *_, expected_read = both(*inputs)
    assert torch.equal(product.nan_to_num(), expected.nan_to_num())
    torch.testing.assert_close(read, expected_read, rtol=1e-6, atol=1e-7, equal_nan=True)
    # Kernels may round a value that lies between two codes to the other one, but decode by the very scale and noise.
    decoded = codec.decode(tuple(kept), torch.float32)
    again = codec.decode(codec.encode(product), torch.float32)
    assert torch.equal(decoded.isnan(), product.isnan())
    assert torch.equal(decoded.isinf(), product.isinf())
    is_same = (decoded - again).abs() <= 1e-6 * again.abs()
    assert float(is_same[again.isfinite()].float().mean()) > 0.999
    wrong = (decoded - product).abs().nan_to_num(posinf=0.0)
    assert float(wrong.max()) <= 1.001 * float((again - product).abs().nan_to_num(posinf=0.0).max())


@pytest.mark.parametrize("name", ["int8", "int4", "int8[:1/4x16]+int6"])
def test_nothing_of_a_values_size_is_written_in_between(name: str) -> None:
    """By the codec of most steps, noise and all, and where those of others come before."""
    codec = codec_named(name, "stochastic")

    def both(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        value = torch.nn.functional.gelu(x @ w)
        return value.sum(), *codec.encode(value)

    x, w = _value("cpu", 0).nan_to_num(), _value("cpu", 1).nan_to_num().T.contiguous()
    (_, *parts), code = _compiled(both, x, w)
    assert len(parts) == codec.num_parts
    sizes = [math.prod(map(int, found.split(", "))) for found in _WORDS.findall(code)]
    assert [size for size in sizes if size >= 64 * 64 // 2] == [64 * 64]


@devices
def test_a_cast_to_eight_bits_keeps_what_is_beyond_them(device: str) -> None:
    """NaNs and signs, too; compiled and not."""
    cast, inf = compat.to_e4m3(), torch.inf
    given = torch.tensor([0.0, 1.0, 17.0, -19.0, 448.0, 465.0, -1e9, inf, -inf, torch.nan])
    nearest = torch.tensor([0.0, 1.0, 16.0, -20.0, 448.0, 448.0, -448.0, 448.0, -448.0, torch.nan])
    (compiled,), code = _compiled(lambda x: (cast(x),), given.to(device))
    assert len(_KERNEL.findall(code)) == 1
    for found in (cast(given.to(device)), compiled):
        assert found.dtype == torch.float8_e4m3fn
        torch.testing.assert_close(found.float().cpu(), nearest, rtol=0, atol=0, equal_nan=True)


@devices
def test_bits_take_no_kernel_of_their_own(device: str) -> None:
    bits = codec_named("bits")

    def both(x: torch.Tensor, gradient: torch.Tensor, words: torch.Tensor) -> Tensors:
        mask = x > 0.3
        return x * mask, *bits.encode(mask), gradient * bits.decode((words,), torch.bool)

    x, gradient = _value(device, 0).nan_to_num(), _value(device, 1).nan_to_num()
    inputs = x, gradient, *bits.encode(gradient > 0)
    found, code = _compiled(both, *inputs)
    assert len(_KERNEL.findall(code)) <= 2
    assert all(map(torch.equal, found, both(*inputs)))


@devices
def test_values_read_together_are_encoded_together(device: str) -> None:
    """Two matrix products that one kernel of the forward reads anyway: their copies cost no further kernel."""
    codec = codec_named("int8")

    def forward(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Tensors:
        gate, up = x @ w, x @ v
        encoded = codec.encode(gate), codec.encode(up)
        return (torch.nn.functional.silu(gate) * up) @ w, *encoded[0], *encoded[1]

    square = [_value(device, seed).nan_to_num()[:, :64].bfloat16() for seed in range(3)]
    _, code = _compiled(forward, *(x.contiguous() for x in square))
    assert len(_KERNEL.findall(code)) == 1


@devices
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_tiers_are_decoded_straight_to_their_rows(device: str, rounding: Rounding) -> None:
    """Whatever else is as large as the decoded value would be alive beside it."""
    codec = codec_named("int8[:4/16x16]+int6", rounding)
    # Of 16 bits: in fp32 Inductor warns that the product could be less precise.
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    parts = codec.encode(x)

    def decoded(*parts: torch.Tensor) -> Tensors:
        return (codec.decode(parts, torch.bfloat16).t() @ x,)

    with capture_wrappers() as wrappers:
        torch._dynamo.reset()
        torch.compile(decoded, dynamic=False, options={**compat.WHOLE_COPIES})(*parts)
    (wrapper,) = wrappers
    made = re.findall(
        r"(?m)^ +\w+ = empty_strided_\w+\(\((\d+), (\d+)\)", Path(wrapper.path).read_text()
    )
    sizes = [math.prod(map(int, size)) for size in made]
    # The value, and the product; of noise a number for each group.
    assert [size for size in sizes if size > 256 * 64 // 32] == [256 * 64, 64 * 64]
