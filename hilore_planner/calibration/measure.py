"""Measure, on one batch, what errors in activations do to the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hilore_planner.calibration.capture import Inputs
from hilore_planner.calibration.interpret import Change, JointInterpreter, Values
from hilore_planner.calibration.round_trip import round_trip
from hilore_planner.calibration.rows import SequenceWeights, squared_error
from hilore_planner.passes.codecs import Codec
from hilore_planner.passes.codecs.base import is_wide_float
from hilore_planner.passes.units import RecoveryUnit


@dataclass(slots=True)
class MeasuredBatch:
    """One batch: its activations and exact gradient, and the effect of changes on the latter.

    Gradients are taken op by op, each op as torch runs it alone.
    """

    interpreter: JointInterpreter
    inputs: Inputs
    weights: SequenceWeights | None
    values: Values = field(init=False)
    reference: dict[int, Tensor] = field(init=False)
    squared_norm: float = field(init=False)
    """Of the exact gradient."""
    is_finite: bool = field(init=False)
    """Whether all activations are that a codec may lose something of."""

    def __post_init__(self) -> None:
        self.values = self.interpreter.forward(self.inputs)
        self.reference = self.interpreter.reference(self.values)
        self.squared_norm = _squared_norm(self.reference.values())
        kept = (self.values[maker] for maker in self.interpreter.makers.values())
        self.is_finite = _are_finite(filter(is_wide_float, kept))

    @property
    def exposed(self) -> float:
        """What squared gradient norms are in proportion to on average: squared exposure; themselves, if not known."""
        return self.squared_norm if self.weights is None else self.weights.total

    @property
    def is_half(self) -> bool:
        """Whether activations are of half precision, some at least; adapters' gradients may be wider."""
        values = (self.values[maker] for maker in self.interpreter.makers.values())
        return any(value.dtype in (torch.bfloat16, torch.float16) for value in values)

    def share(self, changes: Mapping[str, Change]) -> float:
        """Squared relative error of the gradient under changes."""
        gradients = self.interpreter.gradients(self.values, changes)
        moved = (gradient - self.reference[index] for index, gradient in gradients)
        return _squared_norm(moved) / self.squared_norm

    def error(self, unit: RecoveryUnit, codec: Codec) -> float:
        """Squared relative error of a unit's value kept by a codec."""
        value = self.values[unit.maker]
        weights = None if self.weights is None else self.weights.over(value)
        back = round_trip(value, codec, is_finite=self.is_finite)
        return float(squared_error(value, back, weights))


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    peaks = [torch.linalg.vector_norm(tensor, math.inf, dtype=torch.float32) for tensor in tensors]
    return not peaks or bool(torch.stack(peaks).isfinite().all())


def _squared_norm(tensors: Iterable[Tensor]) -> float:
    """Of all together. Each is read once, in fp32: gradients are the largest of what a pass reads."""
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
    return float(torch.stack(norms).double().square().sum()) if norms else 0.0
