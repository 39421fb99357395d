"""One way to run an update, tried: its time, its memory, its gradient."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hilore_planner.peak.measure import cpu_moments, measured_peak_bytes
from hilore_planner.profiling import wait


@dataclass(frozen=True, slots=True)
class Trial:
    """What an update took.

    Attributes:
        times_ms: of one update, forward and backward, each time it was run.
        peak_bytes: most bytes allocated at once, weights, batch and gradients included.
        saved_bytes: what is alive between forward and backward that was not there before.
        gradient: of all parameters, flat, fp32, on the CPU.
    """

    times_ms: tuple[float, ...]
    peak_bytes: int
    saved_bytes: int
    gradient: Tensor

    @property
    def time_ms(self) -> float:
        """The median."""
        return statistics.median(self.times_ms)

    @property
    def time_spread(self) -> float:
        """How far the slowest run is from the fastest, relative to the median."""
        return (max(self.times_ms) - min(self.times_ms)) / self.time_ms

    def gradient_difference(self, reference: Trial) -> float:
        """Norm of the difference to another trial's gradient, relative to the latter."""
        difference = torch.linalg.vector_norm(self.gradient - reference.gradient)
        return float(difference / torch.linalg.vector_norm(reference.gradient))


def try_update(
    loss: Callable[..., Tensor], batch: Iterable[Tensor], model: nn.Module, *, repeats: int = 5
) -> Trial:
    """Run ``loss(*batch).backward()`` until warm, then measure time, peak and saved bytes apart.

    Args:
        loss: compiled or not; reads ``model``'s parameters.
        batch: what it takes.
        model: whose gradients are dropped before and after every run.
        repeats: runs that are timed.
    """
    inputs = tuple(batch)
    device = inputs[0].device

    def run() -> None:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(loss(*inputs))

    run()
    run()
    times_ms = tuple(time_ms(run, device) for _ in range(repeats))
    gradient = flat_gradient(model)
    model.zero_grad(set_to_none=True)
    saved_bytes = _saved_bytes(lambda: loss(*inputs), device)
    peak_bytes = measured_peak_bytes(run, device).peak_bytes
    model.zero_grad(set_to_none=True)
    if device.type == "cpu":  # its count starts at zero: what the update is given was there before
        peak_bytes += storage_bytes([*model.parameters(), *model.buffers(), *inputs])
    return Trial(times_ms, peak_bytes, saved_bytes, gradient)


def flat_gradient(model: nn.Module) -> Tensor:
    """Gradients of all parameters that have one: flat, fp32, on the CPU."""
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    return torch.cat([gradient.flatten().float().cpu() for gradient in gradients])


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def time_ms(run: Callable[[], None], device: torch.device) -> float:
    """Milliseconds of one run, the device's work included."""
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return 1e3 * (time.perf_counter() - start)


def _saved_bytes(forward: Callable[[], object], device: torch.device) -> int:
    if device.type == "cpu":
        return cpu_moments(forward)[-1]
    before_bytes = torch.cuda.memory_allocated(device)
    held = forward()
    wait(device)
    saved_bytes = torch.cuda.memory_allocated(device) - before_bytes
    del held
    return saved_bytes
