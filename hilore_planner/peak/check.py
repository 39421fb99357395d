"""Compare predicted and measured peak of one compiled update on this machine's device.

        python -m hilore_planner.peak.check --layers 4 --device cuda

The update is a small Qwen2-like transformer under `torch.compile`. Prints forward and backward peaks,
predicted and measured, and who is alive at each; on CUDA the difference is attributed storage by storage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from hilore_planner.peak.measure import Measured, measured_peak_bytes
from hilore_planner.peak.model import PolicyLoss, Shape
from hilore_planner.peak.snapshot import measured_owners
from hilore_planner.peak.step import StepPeak, step_peak
from hilore_planner.peak.timeline import Owner
from hilore_planner.peak.workspace import MeasuredWorkspaces
from hilore_planner.peak.wrapper import Wrapper, capture_wrappers

Step = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """A compiled update, warm, with no gradients alive."""

    forward: Wrapper
    backward: Wrapper
    run_forward: Step
    run: Step


def compiled_update(shape: Shape, device: torch.device, dtype: torch.dtype) -> Update:
    """Build, compile and run the update twice."""
    torch.manual_seed(0)
    model = PolicyLoss(shape).to(device, dtype)
    ids = torch.randint(shape.vocabulary, (shape.batch, shape.tokens), device=device)
    weights = torch.rand(shape.batch, shape.tokens, device=device)
    loss_of = torch.compile(model)

    def run_forward() -> torch.Tensor:
        loss: torch.Tensor = loss_of(ids, weights)
        return loss

    def run() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = run_forward()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with capture_wrappers() as wrappers:
        run()
    run()
    model.zero_grad(set_to_none=True)
    (forward,) = (wrapper for wrapper in wrappers if not wrapper.is_backward)
    (backward,) = (wrapper for wrapper in wrappers if wrapper.is_backward)
    return Update(forward, backward, run_forward, run)


def report(update: Update, device: torch.device, peak: StepPeak) -> dict[str, Any]:
    """Predicted against measured, in bytes beyond the base, and in all."""
    forward = measured_peak_bytes(update.run_forward, device)
    step = measured_peak_bytes(update.run, device)
    return {
        "base_bytes": {"predicted": peak.base_bytes, "measured": step.base_bytes},
        "forward": _compare(peak.forward.peak_bytes - peak.base_bytes, forward),
        "update": _compare(peak.peak_bytes - peak.base_bytes, step),
        "predicted_phase": peak.phase,
        "predicted_line": peak.backward.peak_label,
        "saved_bytes": peak.saved_bytes,
        "gradient_bytes": peak.gradient_bytes,
        "reserved_bytes": peak.reserved_bytes,
    }


def _compare(predicted_bytes: int, measured: Measured) -> dict[str, Any]:
    total_bytes = predicted_bytes + measured.base_bytes
    return {
        "predicted_added_bytes": predicted_bytes,
        "measured_added_bytes": measured.added_bytes,
        "ratio_added": predicted_bytes / measured.added_bytes,
        "ratio_total": total_bytes / measured.peak_bytes,
    }


def difference(predicted: Sequence[Owner], measured: Sequence[Owner]) -> list[tuple[str, int, int]]:
    """Names and bytes that are on one side only: (name, predicted, measured), largest first."""
    left = Counter((owner.name, owner.requested_bytes) for owner in predicted)
    right = Counter((owner.name, owner.requested_bytes) for owner in measured)
    rows = [(name, size * n, 0) for (name, size), n in (left - right).items()]
    rows += [(name, 0, size * n) for (name, size), n in (right - left).items()]
    return sorted(rows, key=lambda row: -max(row[1:]))


def _print_owners(title: str, owners: Sequence[Owner], top: int) -> None:
    print(f"\n{title}: {len(owners)} storages")
    for owner in owners[:top]:
        print(f"  {owner.counted_bytes:>14,}  {owner.name} (line {owner.line})")


def _print_difference(rows: Sequence[tuple[str, int, int]], top: int) -> None:
    print("\nOnly on one side (predicted bytes, measured bytes, name)")
    for name, predicted_bytes, measured_bytes in rows[:top]:
        print(f"  {predicted_bytes:>14,} {measured_bytes:>14,}  {name}")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="predicted against measured peak of an update")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--top", type=int, default=20, help="owners to print")
    parser.add_argument("--workspaces", type=Path, help="file to keep measured workspaces in")
    parser.add_argument("--no-workspaces", action="store_true", help="count none")
    parser.add_argument("--json", action="store_true", help="print one object only")
    for size in fields(Shape):
        parser.add_argument(f"--{size.name.replace('_', '-')}", type=int, default=size.default)
    return parser.parse_args(argv)


def main(argv: Sequence[str] = ()) -> int:
    """Run the comparison; returns the exit status, 1 if the prediction was below."""
    options = _arguments(argv)
    device = torch.device(options.device)
    shape = Shape(**{size.name: getattr(options, size.name) for size in fields(Shape)})
    update = compiled_update(shape, device, getattr(torch, options.dtype))
    workspaces = None if options.no_workspaces else MeasuredWorkspaces(device, options.workspaces)
    peak = step_peak(
        update.forward,
        update.backward,
        update.forward.example_inputs,
        device=device,
        updates=2,
        workspaces=workspaces,
    )
    result: dict[str, Any] = {
        "device": str(device),
        "torch": torch.__version__,
        "shape": asdict(shape),
    }
    result |= report(update, device, peak)
    print(json.dumps(result, indent=None if options.json else 1))
    if not options.json:
        _print_owners("Predicted peak", peak.owners, options.top)
        if device.type == "cuda":
            paths = {update.forward.path, update.backward.path}
            found = measured_owners(update.run, device, paths)
            _print_owners("Measured peak, beyond the base", found, options.top)
            computed = [owner for owner in peak.owners if owner.line]
            _print_difference(difference(computed, found), options.top)
    return int(result["update"]["ratio_total"] < 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
