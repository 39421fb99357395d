"""The ``hilore plan`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Codecs = Annotated[
    str | None, typer.Option(help="Comma-separated; all that are known if not given.")
]


def plan_command(
    model: Annotated[
        str, typer.Option(help="Such as qwen2.5-7b, or the path of a transformers config.json.")
    ],
    device: Annotated[str, typer.Option(help="Such as h200, h100-80g, a100-40g, l40s.")] = "h200",
    seqs: Annotated[int, typer.Option(help="Sequences in the microbatch.")] = 4,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 512,
    response: Annotated[int, typer.Option(help="Tokens of each response.")] = 2048,
    lora: Annotated[int, typer.Option(help="Rank of adapters; 0 trains every weight.")] = 0,
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "bfloat16",
    optimizer: Annotated[str, typer.Option(help="Whose state is held.")] = "adamw",
    head: Annotated[str, typer.Option(help="auto, off, or a number of chunks.")] = "auto",
    memory_cap: Annotated[
        str | None, typer.Option(help="Such as 60GiB or 75%; the device's memory if not given.")
    ] = None,
    gradient_error: Annotated[
        float, typer.Option(help="Relative error allowed in the gradient.")
    ] = 0.0,
    codecs: Codecs = None,
    costs: Annotated[
        str, typer.Option(help="roofline, or a cost file that was measured on such a device.")
    ] = "roofline",
    points: Annotated[int, typer.Option(min=2, help="Caps on the frontier.")] = 6,
    solver_seconds: Annotated[
        float, typer.Option(min=0.001, help="Time limit of the solver, for each cap.")
    ] = 10.0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Write the plan here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a model's GRPO update for a device that need not be there.

    Nothing is compiled, run or allocated. Times come from the device's rates, and the peak is the planner's estimate:
    no compiled code was checked.
    """
    from hilore_planner.offline.study import study
    from hilore_planner.offline.workload import Workload
    from hilore_planner.render.output import emit
    from hilore_planner.render.study import study as render_study
    from hilore_planner.render.study import study_record

    options: dict[str, object] = {
        "memory_cap": memory_cap,
        "gradient_error": gradient_error,
        "head": int(head) if head.isdigit() else head,
        "costs": costs,
        "solver_seconds": solver_seconds,
    }
    if codecs is not None:
        options["codecs"] = [name.strip() for name in codecs.split(",") if name.strip()]
    found = study(
        Workload(model, seqs, prompt, response, lora, dtype),
        device=device,
        optimizer=optimizer,
        points=points,
        **options,
    )
    if output is not None:
        found.plan.save(output)
    emit(as_json, lambda: study_record(found), lambda width: render_study(found, width))
    found.plan.require_feasible()
