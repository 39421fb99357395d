"""The peak of a whole update: forward, backward, and what is held between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hilore_planner.errors import RegionError
from hilore_planner.passes.compat import backward_frees_tangents
from hilore_planner.peak.allocator import Allocator
from hilore_planner.peak.dry_run import (
    DryRunner,
    Value,
    Workspaces,
    allocator_for,
    materialise,
    output_specs,
    summarise,
)
from hilore_planner.peak.ledger import Ledger
from hilore_planner.peak.timeline import Owner, TensorSpec, Timeline
from hilore_planner.peak.wrapper import InputSpec, Wrapper

Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class StepPeak:
    """A predicted update.

    Attributes:
        peak_bytes: most bytes the allocator counts, `base_bytes` included.
        phase: where that is.
        base_bytes: counted before the forward: inputs (parameters too) and all else.
        saved_bytes: counted between forward and backward beyond `base_bytes`: saved activations and
            the outputs the user holds.
        gradient_bytes: counted after the backward beyond `base_bytes`: gradients and those outputs.
        reserved_bytes: what the allocator then holds from the device, what was there before included.
        forward, backward: the two timelines, of which the inputs alone are part.
    """

    peak_bytes: int
    phase: Phase
    base_bytes: int
    saved_bytes: int
    gradient_bytes: int
    reserved_bytes: int
    forward: Timeline
    backward: Timeline

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Who is alive at the peak, largest first."""
        return self.forward.owners if self.phase == "forward" else self.backward.owners


def step_peak(
    forward: Wrapper,
    backward: Wrapper,
    inputs: Sequence[InputSpec],
    *,
    device: torch.device | str,
    base_bytes: int | None = None,
    tangents: Sequence[TensorSpec] | None = None,
    updates: int = 1,
    allocator: Allocator | None = None,
    workspaces: Workspaces | None = None,
) -> StepPeak:
    """Predict the update of one compiled region.

    The forward's outputs themselves, with all their aliasing, become the backward's inputs, so
    donated buffers, saved inputs and saved outputs come out as at run time. The user holds the
    other outputs until the backward is done. Gradients stay alive after it: the first accumulation
    takes them over. Where a `.grad` is there already, adding in place takes nothing more: count it
    in `base_bytes`.

    Args:
        forward: the forward's wrapper.
        backward: the backward's wrapper.
        inputs: the forward's, usually all kept by the caller.
        device: the device whose memory is counted.
        base_bytes: counted before the forward, and all the while, as the device counts it: inputs and all
            that is there besides (optimizer state, old gradients, library workspaces that persist, another model).
            None, or less than the inputs take: the inputs alone.
        tangents: the gradients that come in for the forward's outputs; None: like the
            floating-point outputs, if as many as the backward takes, else as the benchmark
            harness in the file makes them.
        updates: how many follow one another, gradients dropped in between. A caching allocator
            serves the same requests differently once its cache is warm; the highest of the updates
            is returned.
        allocator: model of the device's allocator; None: a fresh one of the device's kind.
        workspaces: what operations take while they run; None: nothing is counted for that.

    Raises:
        RegionError: a wrapper cannot be run dry, or the two do not belong together.
    """
    device = torch.device(device)
    ledger = Ledger(device, allocator or allocator_for(device))
    with FakeTensorMode() as mode, torch.no_grad():
        runner = DryRunner(mode, ledger, workspaces)
        values = materialise(inputs, forward.input_names, ledger)
        step = _Step(runner, forward, backward, tuple(inputs), values, tangents)
        first = step.run()
        stop = len(ledger)
        found = [first, *(step.repeated(first, stop) for _ in range(updates - 1))]
        values.clear()
    return _highest(found, base_bytes or 0)


@dataclass(frozen=True, slots=True)
class _Update:
    """One update, and where in the ledger its forward starts and each half is done."""

    forward: Timeline
    backward: Timeline
    start: int
    middle: int
    end: int

    @property
    def peak_bytes(self) -> int:
        return max(self.forward.peak_bytes, self.backward.peak_bytes)


def _highest(updates: Sequence[_Update], base_bytes: int) -> StepPeak:
    """The peak of the highest of some updates; ``base_bytes`` as for :func:`step_peak`."""
    highest = max(updates, key=lambda update: update.peak_bytes)
    before, after = highest.forward, highest.backward
    # A block may be larger than its tensor: what inputs take is part of the device's own count already.
    outside_bytes = max(0, base_bytes - before.start_bytes)
    return StepPeak(
        peak_bytes=outside_bytes + highest.peak_bytes,
        phase="forward" if before.peak_bytes > after.peak_bytes else "backward",
        base_bytes=outside_bytes + before.start_bytes,
        saved_bytes=before.end_bytes - before.start_bytes,
        gradient_bytes=after.end_bytes - before.start_bytes,
        reserved_bytes=outside_bytes + after.reserved_bytes,
        forward=before,
        backward=after,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    runner: DryRunner
    forward: Wrapper
    backward: Wrapper
    specs: tuple[InputSpec, ...]
    values: list[Value]
    tangents: Sequence[TensorSpec] | None

    def run(self) -> _Update:
        """One update; only the kept inputs are alive afterwards."""
        ledger = self.runner.ledger
        start = len(ledger)
        outputs = list(self.runner.run(self.forward, list(self.values)))
        forward = summarise(ledger, start, output_specs(outputs))
        n_saved = sum(not _is_tangent(name) for name in self.backward.input_names)
        n_held = len(outputs) - n_saved
        if n_held < 0:
            raise RegionError(
                f"the backward {self.backward.path} takes {n_saved} saved values, but the forward "
                f"{self.forward.path} has {len(outputs)} outputs: they do not belong together"
            )
        held, saved = outputs[:n_held], outputs[n_held:]
        del outputs
        middle = len(ledger)
        incoming = self._incoming(held, ledger)
        arguments = sorted(saved, key=lambda value: isinstance(value, torch.Tensor)) + incoming
        # The gradient of the loss itself stays in the frame of `loss.backward()`.
        roots = [
            value for value in incoming if isinstance(value, torch.Tensor) and value.numel() == 1
        ]
        still_held = roots if backward_frees_tangents() else incoming
        del saved, incoming
        gradients = list(self.runner.run(self.backward, arguments))
        still_held.clear()
        self._accumulate(gradients)
        backward = summarise(ledger, middle, output_specs(gradients))
        return _Update(forward, backward, start, middle, len(ledger))

    def repeated(self, first: _Update, stop: int) -> _Update:
        """An update once more: it asks for the same as the first, which the ledger recorded until ``stop``."""
        ledger = self.runner.ledger
        start = len(ledger)
        ledger.source = self.forward.path
        ledger.repeat(first.start, first.middle)
        forward = summarise(ledger, start, first.forward.outputs)
        middle = len(ledger)
        ledger.source = self.backward.path
        ledger.repeat(first.middle, first.end)
        backward = summarise(ledger, middle, first.backward.outputs)
        end = len(ledger)
        ledger.repeat(first.end, stop)
        return _Update(forward, backward, start, middle, end)

    def _incoming(self, held: Sequence[Value], ledger: Ledger) -> list[Value]:
        names = [name for name in self.backward.input_names if _is_tangent(name)]
        specs = self.tangents
        if specs is None:
            specs = [
                TensorSpec.of(value)
                for value in held
                if isinstance(value, torch.Tensor) and value.is_floating_point()
            ]
            if len(specs) != len(names):
                compiled_for = self.backward.example_inputs_of_harness()
                specs = [compiled_for[name] for name in names if name in compiled_for]
        if len(specs) != len(names):
            raise RegionError(
                f"the backward {self.backward.path} takes {len(names)} incoming gradients, but "
                f"{len(specs)} are known: give `tangents`"
            )
        return materialise(specs, names, ledger)

    def _accumulate(self, gradients: list[Value]) -> None:
        """Copy, one by one, gradients whose layout is not their parameter's, as autograd does."""
        for index, (gradient, spec) in enumerate(zip(gradients, self.specs, strict=False)):
            if not isinstance(gradient, torch.Tensor) or not isinstance(spec, TensorSpec):
                continue
            if gradient.shape == spec.shape and gradient.stride() != spec.stride:
                copy = torch.empty_strided(
                    spec.shape, spec.stride, dtype=gradient.dtype, device=gradient.device
                )
                self.runner.ledger.track(copy, f"copy of gradient {index}")
                gradients[index] = copy


def _is_tangent(name: str) -> bool:
    return name.startswith("tangents_")
