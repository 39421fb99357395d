"""Problems shaped like a decoder-only transformer's update, unfused: a unit per storage.

A layer is RMSNorm, grouped-query attention with rope, RMSNorm, SwiGLU: 38 units and 16 backward
positions. Sizes are bf16 at ``tokens`` tokens, times a roofline of 4 TB/s and 600 TFLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hilore_planner.solvers import CompressedForm, PlacementProblem, Position, Unit

GIB = 2**30
_BYTES_PER_NS = 4000.0
_FLOP_PER_NS = 600e3
_BACKWARD_STEPS = 16
_HEAD_STEPS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and a batch."""

    layers: int
    hidden: int = 1536
    ffn: int = 8960
    heads: int = 12
    kv_heads: int = 2
    head_dim: int = 128
    vocab: int = 151936
    tokens: int = 16384
    head_tokens: int = 16384
    """Tokens whose logits are alive at once: fewer where the head is cut into chunks."""


@dataclass(slots=True)
class _Layer:
    """Collects one layer's units; backward positions count from the layer's own first."""

    index: int
    made_at: int
    first_backward: int
    tokens: int
    codecs: bool
    units: list[Unit] = field(default_factory=list)

    def add(
        self,
        name: str,
        width: float,
        parents: tuple[str, ...],
        *,
        reads: tuple[int, ...] = (),
        flop: float = 0.0,
        fused: bool = False,
    ) -> None:
        """A unit of ``tokens`` × ``width`` bytes; a ``fused`` one is never written out unless kept."""
        size = int(self.tokens * width)
        moved_ns = 0.0 if fused else size / _BYTES_PER_NS
        forms = (
            CompressedForm("int8", size * 33 // 64, int(moved_ns) + 1, int(moved_ns) + 1, 1e-5),
        )
        self.units.append(
            Unit(
                name=self.named(name),
                kept_bytes=size,
                rebuilt_bytes=0 if fused else size,
                recompute_ns=int(max(flop / _FLOP_PER_NS, 1.5 * moved_ns)) + 1,
                keep_ns=int(size / _BYTES_PER_NS) if fused else 0,
                parents=tuple(self.named(parent) for parent in parents),
                made_at=self.made_at,
                released_at=self.made_at,
                read_at=tuple(self.first_backward + read for read in reads),
                codecs=forms if self.codecs and not fused and width > 64 else (),
                kind=name,
                layer=self.index,
            )
        )

    def named(self, name: str) -> str:
        """``x`` of the layer after, or any unit of this one."""
        return f"{name}.{self.index - 1}" if name == "x" else f"{name}.{self.index}"


def _norm(layer: _Layer, which: str, source: str, hidden: int, reads: tuple[int, int]) -> None:
    """RMSNorm: the fp32 cast, its square, the reciprocal root, the normalised and the scaled."""
    grad, weight = reads
    layer.add(f"{which}_cast", 4 * hidden, (source,), fused=True)
    layer.add(f"{which}_square", 4 * hidden, (f"{which}_cast",), fused=True)
    layer.add(f"{which}_rstd", 4, (f"{which}_square",), reads=(grad,))
    layer.add(f"{which}_hat", 4 * hidden, (f"{which}_cast", f"{which}_rstd"), fused=True)
    layer.add(f"{which}_low", 2 * hidden, (f"{which}_hat",), reads=(grad,), fused=True)
    layer.add(which, 2 * hidden, (f"{which}_low",), reads=(weight,))


def _rope(layer: _Layer, which: str, width: float, reads: tuple[int, ...]) -> None:
    for part in ("half", "cos", "sin"):
        source = which if part != "sin" else f"{which}_half"
        layer.add(f"{which}_{part}", width, (source,), fused=True)
    layer.add(f"{which}_rope", width, (f"{which}_cos", f"{which}_sin"), reads=reads)


def _units(layer: _Layer, shape: Shape) -> None:
    hidden, ffn = shape.hidden, shape.ffn
    q_width, kv_width = 2 * shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    mm = 2.0 * layer.tokens * hidden
    _norm(layer, "n1", "x", hidden, (15, 13))
    layer.add("q", q_width, ("n1",), flop=mm * q_width / 2)
    layer.add("k", kv_width, ("n1",), flop=mm * kv_width / 2)
    layer.add("v", kv_width, ("n1",), flop=mm * kv_width / 2)
    _rope(layer, "q", q_width, (10, 11))
    _rope(layer, "k", kv_width, ())
    layer.add("k_all", q_width, ("k_rope",), reads=(10, 11))
    layer.add("v_all", q_width, ("v",), reads=(10, 11))
    seen = ("q_rope", "k_all", "v_all")
    layer.add("attention", q_width, seen, reads=(8, 10), flop=layer.tokens * 2048.0 * q_width)
    layer.add("lse", 4 * shape.heads, seen, reads=(10,), flop=layer.tokens * 2048.0 * q_width)
    layer.add("o", 2 * hidden, ("attention",), flop=mm * q_width / 2)
    layer.add("mid", 2 * hidden, ("x", "o"), reads=(7,))
    _norm(layer, "n2", "mid", hidden, (7, 6))
    layer.add("gate", 2 * ffn, ("n2",), reads=(3, 4), flop=mm * ffn)
    layer.add("up", 2 * ffn, ("n2",), reads=(2,), flop=mm * ffn)
    layer.add("gate_cast", 4 * ffn, ("gate",), fused=True)
    layer.add("silu_high", 4 * ffn, ("gate_cast",), fused=True)
    layer.add("silu", 2 * ffn, ("silu_high",), reads=(2,))
    layer.add("product", 2 * ffn, ("silu", "up"), reads=(1,))
    layer.add("down", 2 * hidden, ("product",), flop=mm * ffn)


def _residual(shape: Shape, index: int | None, *, read_at: int) -> Unit:
    """The residual stream after a layer; None: the embedding, before the first."""
    size = shape.tokens * 2 * shape.hidden
    made_at = 0 if index is None else index + 1
    return Unit(
        name="x.-1" if index is None else f"x.{index}",
        kept_bytes=size,
        rebuilt_bytes=size,
        recompute_ns=int(1.5 * size / _BYTES_PER_NS),
        keep_ns=0,
        parents=() if index is None else (f"mid.{index}", f"down.{index}"),
        made_at=made_at,
        released_at=made_at + 1,
        read_at=(read_at,),
        kind="embedding" if index is None else "x",
        layer=index,
    )


def transformer(
    shape: Shape, *, cap_bytes: int, codecs: bool = False, gradient_error: float = 0.0
) -> PlacementProblem:
    """The update of ``shape`` under a cap on what is moving (no weights are counted)."""
    first_backward = shape.layers + 2
    end = first_backward + _HEAD_STEPS + shape.layers * _BACKWARD_STEPS
    units = [_residual(shape, None, read_at=end - 1)]
    for index in range(shape.layers):
        start = end - (index + 1) * _BACKWARD_STEPS
        layer = _Layer(index, index + 1, start, shape.tokens, codecs)
        _units(layer, shape)
        # Read by the norm of the layer above, or of the head.
        units += [*layer.units, _residual(shape, index, read_at=start - 1)]
    return PlacementProblem(
        units=tuple(units),
        positions=_positions(shape, first_backward),
        first_backward=first_backward,
        memory_cap_bytes=cap_bytes,
        gradient_error=gradient_error,
    )


def _positions(shape: Shape, first_backward: int) -> tuple[Position, ...]:
    token_bytes = shape.tokens * 2
    logits = shape.head_tokens * 6 * shape.vocab
    positions = [
        Position(f"forward.{k}", token_bytes * (2 * shape.hidden + 3 * shape.ffn))
        for k in range(first_backward - 1)
    ]
    positions.append(Position("head", logits))
    positions += [Position(f"head.backward.{k}", logits) for k in range(_HEAD_STEPS)]
    # Widths of the gradients and temporaries alive at each backward step of a layer.
    hidden, ffn = shape.hidden, shape.ffn
    widths = [hidden + ffn] * 2 + [hidden + 3 * ffn] * 3 + [hidden * 2 + ffn] * 2
    widths += [2 * hidden] * 2 + [4 * hidden] * 7
    assert len(widths) == _BACKWARD_STEPS
    for index in reversed(range(shape.layers)):
        positions += [
            Position(f"layer.{index}.backward.{k}", token_bytes * width)
            for k, width in enumerate(widths)
        ]
    return tuple(positions)
