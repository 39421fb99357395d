"""``hilore bench codecs``: what codecs lose on values of several kinds, and what they cost in the kernels around them.

Error is root-mean-square error over root-mean-square value, of fp32 values; in bf16 its own rounding, 0.0017, is
added in squares. Kernels are those of a gated MLP: one that makes ``silu(gate)·up`` and one that goes back through it
(which decodes where it reads), and a norm whose output a matrix product will read (for which it is written out again).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from hilore_planner.bench.runner import Row
from hilore_planner.bench.trial import time_ms
from hilore_planner.codec_names import KNOWN_CODECS
from hilore_planner.passes import compat
from hilore_planner.passes.codecs import Codec, Rounding, codec_named

SEED = 0
LOSSY = tuple(
    name
    for name in KNOWN_CODECS
    if codec_named(name).accepts(torch.empty((1, 8), dtype=torch.bfloat16))
)
"""Codecs of half-precision values."""
_ROUNDINGS: tuple[Rounding, ...] = ("nearest", "stochastic")

Tensors = tuple[Tensor, ...]


def statistics_of_activations(rows: int, features: int) -> dict[str, Tensor]:
    """Values of the kinds seen in language models, (rows, features) fp32."""
    generator = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    squares = sum((normal(rows, features).square() for _ in range(4)), torch.zeros(()))
    outliers = normal(rows, features)
    outliers[:, 64::128] *= 30
    return {
        "Gaussian": normal(rows, features),
        "heavy-tailed (t, 4)": normal(rows, features) / (squares / 4).sqrt(),
        "outlier channels": outliers,
        "gated (SwiGLU)": silu(1.5 * normal(rows, features)) * normal(rows, features),
    }


def bench_errors(rows: int = 2048, features: int = 2048) -> list[Row]:
    """A row for each kind of values, codec and rounding."""
    return [
        {
            "setting": kind,
            "variant": name,
            "rounding": rounding,
            "seed": SEED,
            "relative_error": _relative_error(codec_named(name, rounding), x),
            "bits_per_value": 8 * codec_named(name).kept_bytes(x.shape, torch.bfloat16) / x.numel(),
        }
        for kind, x in statistics_of_activations(rows, features).items()
        for name in LOSSY
        for rounding in _ROUNDINGS
    ]


def _relative_error(codec: Codec, x: Tensor) -> float:
    wrong = codec.decode(codec.encode(x), x.dtype) - x
    return float((wrong.double().square().mean() / x.double().square().mean()).sqrt())


@dataclass(frozen=True, slots=True)
class _Kernels:
    """A forward and a backward around kept values; ``keep`` and ``give`` are what a codec does, or nothing."""

    name: str
    rounding: Rounding
    inputs: Tensors
    forward: Callable[..., tuple[Tensors, Tensors]]
    """Of the inputs: what it makes, and what is kept."""
    backward: Callable[..., Tensors]
    """Of the values that were kept, and a gradient."""


def _gated(tokens: int, features: int, device: torch.device) -> _Kernels:
    def forward(gate: Tensor, up: Tensor) -> tuple[Tensors, Tensors]:
        return (silu(gate) * up,), (gate, up)

    def backward(kept: Tensors, gradient: Tensor) -> Tensors:
        gate, up = kept
        sigmoid = gate.float().sigmoid()
        product = gate * sigmoid * up
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        dtype = gate.dtype
        return tuple(
            x.to(dtype) for x in (product, gradient * up * slope, gradient * gate * sigmoid)
        )

    inputs = tuple(_random(tokens, features, device) for _ in range(2))
    return _Kernels("gated product", "nearest", inputs, forward, backward)


def _norm(tokens: int, features: int, device: torch.device) -> _Kernels:
    def forward(x: Tensor, weight: Tensor) -> tuple[Tensors, Tensors]:
        scale = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        y = (x * scale).to(x.dtype) * weight
        return (y,), (y,)

    def backward(kept: Tensors, gradient: Tensor) -> Tensors:
        return kept  # written out for the products that read it

    inputs = _random(tokens, features, device), _random(1, features, device)[0]
    return _Kernels("norm before a product", "stochastic", inputs, forward, backward)


def _random(rows: int, features: int, device: torch.device) -> Tensor:
    return torch.randn(rows, features, device=device).to(torch.bfloat16)


def bench_kernels(
    tokens: int, features: int, *, device: str, repeats: int, codecs: Sequence[str] = LOSSY
) -> list[Row]:
    """A row for each pair of kernels and each codec, and for keeping values as they are."""
    torch.manual_seed(SEED)
    target = torch.device(device)
    return [
        row
        for make in (_gated, _norm)
        for row in _bench_pair(make(tokens, features, target), codecs, target, repeats)
    ]


def _bench_pair(
    kernels: _Kernels, codecs: Sequence[str], device: torch.device, repeats: int
) -> Iterator[Row]:
    tokens, features = kernels.inputs[0].shape
    gradient = _random(tokens, features, device)
    for name in (None, *codecs):
        codec = None if name is None else codec_named(name, kernels.rounding)
        runs = _runs(kernels, codec, gradient)
        forward_ms, backward_ms = (_median_ms(run, device, repeats) for run in runs)
        yield {
            "setting": f"{kernels.name}, {tokens} x {features}",
            "variant": name or "stored",
            "rounding": kernels.rounding if name else None,
            "seed": SEED,
            "forward_ms": forward_ms,
            "backward_ms": backward_ms,
        }


def _runs(kernels: _Kernels, codec: Codec | None, gradient: Tensor) -> Iterator[Callable[[], Any]]:
    """The compiled forward, and the compiled backward of what it keeps."""
    torch._dynamo.reset()

    def forward(*inputs: Tensor) -> tuple[Tensors, tuple[Tensors, ...]]:
        made, kept = kernels.forward(*inputs)
        return made, tuple((x,) if codec is None else codec.encode(x) for x in kept)

    def backward(parts: tuple[Tensors, ...], gradient: Tensor) -> Tensors:
        dtype = gradient.dtype
        kept = tuple(x[0] if codec is None else codec.decode(x, dtype) for x in parts)
        return kernels.backward(kept, gradient)

    settings: dict[str, Any] = {**compat.WHOLE_COPIES}
    run_forward = torch.compile(forward, dynamic=False, options=settings)
    run_backward = torch.compile(backward, dynamic=False, options=settings)
    _, parts = run_forward(*kernels.inputs)
    yield lambda: run_forward(*kernels.inputs)
    yield lambda: run_backward(parts, gradient)


def _median_ms(run: Callable[[], Any], device: torch.device, repeats: int) -> float:
    def many() -> None:
        for _ in range(10):
            run()

    many()
    return statistics.median(time_ms(many, device) / 10 for _ in range(repeats))


def error_table(rows: Sequence[Row]) -> list[str]:
    """The errors as a Markdown table: kinds of values by codec; stochastic rounding after the slash."""
    found = {
        (row["setting"], row["variant"], row["rounding"]): row["relative_error"]
        for row in rows
        if "relative_error" in row
    }
    lines = [
        f"| values | {' | '.join(f'`{name}`' for name in LOSSY)} |",
        "|---" + "|--:" * len(LOSSY) + "|",
    ]
    for kind in dict.fromkeys(kind for kind, _, _ in found):
        cells = (
            " / ".join(f"{found[kind, name, rounding]:.4f}" for rounding in _ROUNDINGS)
            for name in LOSSY
        )
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def summary(rows: Sequence[Row]) -> list[str]:
    """The table of errors, and what each codec adds to the kernels around it."""
    lines = error_table(rows)
    stored = {row["setting"]: row for row in rows if row["variant"] == "stored"}
    for row in rows:
        if row["setting"] in stored and row["variant"] != "stored":
            base = stored[row["setting"]]
            added = [row[key] - base[key] for key in ("forward_ms", "backward_ms")]
            lines.append(
                f"{row['setting']}, {row['variant']}: {added[0]:+.3f} ms forward, {added[1]:+.3f} ms backward"
            )
    return lines
