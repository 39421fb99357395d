"""Costs measured on the device: every distinct piece of work timed once and kept in a file.

What only a plan's rewritten graphs run is timed, too, as far as it makes a difference; the rest is estimated from the
bytes it moves, at the rate of the chains that were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch.fx import Node

from hilore_planner.attribution import kind_of_op
from hilore_planner.costs.layout import layout_of
from hilore_planner.costs.measuring import measure
from hilore_planner.costs.sample import (
    Sample,
    chain_sample,
    codec_sample,
    copy_sample,
    node_sample,
    not_alone,
)
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.costs.table import CostTable, Entry
from hilore_planner.passes.chains import Chain, Piece, value_bytes
from hilore_planner.passes.codecs import Codec
from hilore_planner.passes.codecs.tiered import Tiered
from hilore_planner.passes.cost import PricedByPiece, Roofline
from hilore_planner.passes.ops import flops, op_name, tensor
from hilore_planner.passes.units import RecoveryUnit

_COPIED = {"cuda": 2**28, "cpu": 2**24}
"""Bytes of the value that is copied to find the rate of moving."""
_CODED = {"cuda": 2**23, "cpu": 0}
"""Bytes of a value of which smaller copies are worth measuring: others take a small share of any update."""
_UNSURE = 0.003
"""Share of a plan's time that may be estimated, though it could be measured."""


class Measured(PricedByPiece):
    """Times from a table; what is not in it is priced by roofline, and measured when :meth:`settle` is called."""

    kind = "measured"

    def __init__(
        self, table: CostTable, stopwatch: Stopwatch | None, estimate: Roofline, *, is_lossy: bool
    ) -> None:
        """Times of ``table``.

        Args:
            table: what is known.
            stopwatch: of the table's device; None where that is not here, so that nothing can be measured.
            estimate: for what is not known.
            is_lossy: whether lossy codecs may be used; else they are not worth measuring.
        """
        super().__init__()
        self._table = table
        self._stopwatch = stopwatch
        self._estimate = estimate
        self._is_lossy = is_lossy
        self._wanted: dict[str, Sample] = {}
        self._samples: dict[object, Sample] = {}
        self._chain_ns, self._chain_bytes = 0, 0
        self._products: dict[torch.dtype, tuple[int, int]] = {}
        """Nanoseconds and operations of those that were measured, by the dtype of their results."""
        self._unmeasured: dict[str, None] = {}
        self.measuring_seconds = 0.0
        device = "cuda" if stopwatch is None else stopwatch.device.type
        self._copied_bytes, self._coded_bytes = _COPIED[device], _CODED[device]
        self._copy = copy_sample(self._copied_bytes)
        self._touch = copy_sample(16)

    @property
    def launch_ns(self) -> int:
        """Time of a kernel that does next to nothing."""
        return self._known_ns(self._touch, lambda: self._estimate.launch_ns)

    def move_ns(self, size_bytes: int) -> int:
        """Time to move this many bytes, at the rate of a large copy."""
        copied_bytes = 2 * self._copied_bytes  # read and written
        copy_ns = self._known_ns(self._copy, lambda: self._estimate.move_ns(copied_bytes))
        return round(size_bytes * copy_ns / copied_bytes)

    def node_ns(self, node: Node) -> int:
        """Time of a kernel of its own; by roofline where it cannot be run alone."""
        if reason := not_alone(node):
            self._unmeasured[f"{op_name(node)}: {reason}"] = None
            return self._estimate.node_ns(node)
        sample = self._sample(node)
        self._note_product(node, self._table.get(sample.key))
        return self._known_ns(sample, lambda: self._estimate.node_ns(node))

    def _note_product(self, node: Node, entry: Entry | None) -> None:
        value = tensor(node)
        if entry is None or entry.ns is None or value is None:
            return
        if kind_of_op(op_name(node)) == "product" and (operations := flops(node)):
            ns, before = self._products.get(value.dtype, (0, 0))
            self._products[value.dtype] = ns + entry.ns, before + operations

    def product_ns(self, dtype: torch.dtype, operations: int) -> int:
        """Time of so many operations, at the rate of the products priced so far."""
        if dtype not in self._products:
            return self._estimate.product_ns(dtype, operations)
        ns, measured = self._products[dtype]
        return round(operations * ns / measured)

    def chain_ns(self, chain: Chain) -> int:
        """Time of fusible work."""
        if not chain.nodes:
            return 0
        time_ns = self._known_ns(self._sample(chain), lambda: 0)
        if time_ns == 0:
            return self._estimated_ns(chain)
        self._chain_ns += time_ns
        self._chain_bytes += chain.moved_bytes
        return time_ns

    def look_at(self, found: Sequence[Piece]) -> None:
        """Measure the chains among the pieces of a plan that are not known, those that take most first."""
        if self._stopwatch is None:
            return
        times = [self.piece_ns(piece) for piece in found]
        unknown: dict[str, tuple[int, Sample]] = {}
        for piece, time_ns in zip(found, times, strict=True):
            sample = self._sample(piece) if isinstance(piece, Chain) else None
            if sample is not None and self._table.get(sample.key) is None:
                unknown[sample.key] = unknown.get(sample.key, (0, sample))[0] + time_ns, sample
        left_ns = sum(time_ns for time_ns, _ in unknown.values())
        wanted = []
        for time_ns, sample in sorted(unknown.values(), key=lambda each: -each[0]):
            if left_ns <= _UNSURE * sum(times):
                break
            left_ns -= time_ns
            wanted.append(sample)
        if wanted:
            self._measure(wanted, found)

    def piece_ns(self, piece: Piece) -> int:
        """Time of a piece of a rewritten graph, measured or not."""
        if not isinstance(piece, Chain):
            if not_alone(piece):
                return self._estimate.node_ns(piece)
            sample = self._sample(piece)
            known = self._table.get(sample.key) or self._table.get(sample.shape_key)
            return known.ns if known and known.ns else self._estimate.node_ns(piece)
        known = self._table.get(self._sample(piece).key)
        return known.ns if known and known.ns else self._estimated_ns(piece)

    def encode_alone_ns(self, unit: RecoveryUnit, codec: Codec, kept_bytes: int) -> int:
        """Time of a kernel that reads a unit and writes its smaller copy."""
        sample = self._codec_sample("encode", unit, codec)
        moved_bytes = value_bytes(unit.maker) + kept_bytes
        return self._known_ns(sample, lambda: self.move_ns(moved_bytes) + self.launch_ns)

    def decode_alone_ns(self, unit: RecoveryUnit, codec: Codec, kept_bytes: int) -> int:
        """Time of a kernel that reads a smaller copy and writes the unit."""
        sample = self._codec_sample("decode", unit, codec)
        moved_bytes = unit.rebuilt_bytes + kept_bytes
        return self._known_ns(sample, lambda: self.move_ns(moved_bytes) + self.launch_ns)

    def settle(self) -> bool:
        """Measure what was asked for and is not known; whether anything was."""
        if not self._wanted or self._stopwatch is None:
            return False
        wanted, self._wanted = list(self._wanted.values()), {}
        self._unmeasured.clear()
        self._chain_ns, self._chain_bytes = 0, 0
        self._measure(wanted, () if self._last is None else self._last[1].pieces)
        return True

    def _measure(self, samples: Sequence[Sample], program: Sequence[Piece]) -> None:
        """Time samples amid the pieces of an update."""
        assert self._stopwatch is not None
        start = time.perf_counter()
        parts = [
            piece.moved_bytes if isinstance(piece, Chain) else self._sample(piece)
            for piece in program
            if isinstance(piece, Chain) or not not_alone(piece)
        ]
        measure(self._table, self._stopwatch, samples, parts)
        self.measuring_seconds += time.perf_counter() - start

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """What is priced by roofline, and why."""
        missing = f"not in {self._table.path}"
        absent = [f"{sample.what}: {missing}" for sample in self._wanted.values()]
        return (*self._unmeasured, *absent)

    def _known_ns(self, sample: Sample | None, estimate: Callable[[], int]) -> int:
        if sample is None:
            return estimate()
        entry = self._table.get(sample.key)
        if entry is None:
            self._wanted[sample.key] = sample
        elif entry.ns is None:
            self._unmeasured[f"{entry.what}: {entry.why}"] = None
        return estimate() if entry is None or entry.ns is None else entry.ns

    def _estimated_ns(self, chain: Chain) -> int:
        """By the bytes it moves, at the rate of the chains priced so far."""
        moved_bytes = chain.moved_bytes
        if self._chain_bytes == 0:
            return self.move_ns(moved_bytes) + self.launch_ns
        return self.launch_ns + round(moved_bytes * self._chain_ns / self._chain_bytes)

    def _sample(self, piece: Piece) -> Sample:
        if piece not in self._samples:
            found = chain_sample(piece) if isinstance(piece, Chain) else node_sample(piece)
            self._samples[piece] = found
        return self._samples[piece]

    def _codec_sample(
        self, use: Literal["encode", "decode"], unit: RecoveryUnit, codec: Codec
    ) -> Sample | None:
        """None where the codec is not worth measuring."""
        value = tensor(unit.maker)
        if value is None or not (self._is_lossy or codec.is_lossless):
            return None
        if unit.kept_bytes < self._coded_bytes:
            return None
        layout = layout_of(value)
        if not isinstance(codec, Tiered):
            layout = layout.in_rows()
        place = (use, codec, layout)
        if place not in self._samples:
            self._samples[place] = codec_sample(use, codec, layout)
        return self._samples[place]
