"""``hilore verify``: gradients of a planned update against exact ones, for a model shape with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hilore_planner.verification import Verification

_SHOWN = 12
"""Modules listed, those with most of the error first."""


def verify_command(
    setting: Annotated[
        str, typer.Option(help="NAME, or NAME:LAYERS, as of the benchmarks.")
    ] = "tiny",
    plan: Annotated[
        Path | None, typer.Option(help="A plan file; the measured error is written into it.")
    ] = None,
    memory_cap: Annotated[
        str | None, typer.Option(help="Such as 20GiB, where no plan is given.")
    ] = None,
    gradient_error: Annotated[float, typer.Option(help="Where no plan is given.")] = 0.015,
    exposure: Annotated[Path | None, typer.Option(help="A risk profile.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run an update under a plan and without compression, and compare the gradients."""
    from hilore_planner.bench.models import batch_of, model_of
    from hilore_planner.bench.setting import device_here, setting_named
    from hilore_planner.grpo.actor import actor_loss
    from hilore_planner.verification import options_of, verify

    chosen = setting_named(setting)
    model = model_of(chosen, device_here(device))
    batch = batch_of(chosen, model, seed=chosen.seed + 1)
    options: dict[str, object] = (
        {"memory_cap": memory_cap, "gradient_error": gradient_error}
        if plan is None
        else options_of(plan)
    )
    if exposure is not None:
        options["exposure"] = exposure
    found = verify(actor_loss(model, prompt=chosen.prompt), tuple(batch), options)
    print(json.dumps(record(found), indent=2) if as_json else "\n".join(lines(found)))


def record(found: Verification) -> dict[str, Any]:
    """What was found, as data."""
    return {
        "predicted_gradient_error": found.predicted_gradient_error,
        "measured_gradient_error": found.total.relative_error,
        "cosine": found.total.cosine,
        "loss_difference": found.loss_difference,
        "saved_bytes": found.plan.solution.saved_bytes,
        "modules": [
            {
                "module": match.module,
                "measured_gradient_error": match.relative_error,
                "cosine": match.cosine,
                "share": match.share,
            }
            for match in found.modules
        ],
    }


def lines(found: Verification) -> list[str]:
    """What was found, for people."""
    total = found.total
    head = (
        f"gradient error {total.relative_error:.3g}, predicted {found.predicted_gradient_error:.3g}; "
        f"cosine {total.cosine:.6f}; loss differs by {found.loss_difference:.1e}"
    )
    rows = [
        f"  {match.share:6.1%}  {match.relative_error:9.3g}  {match.cosine:9.6f}  {match.module}"
        for match in found.modules[:_SHOWN]
    ]
    return [head, "   share      error     cosine  module", *rows]
