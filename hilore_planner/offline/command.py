"""The ``hilore plan`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str, typer.Option(help="Such as qwen2.5-7b, or the path of a transformers config.json.")
]
Device = Annotated[str, typer.Option(help="Such as h200, h100-80g, a100-40g, l40s.")]
Sequences = Annotated[int, typer.Option(help="Sequences in the microbatch.")]
Prompt = Annotated[int, typer.Option(help="Tokens of each prompt.")]
Response = Annotated[int, typer.Option(help="Tokens of each response.")]
Lora = Annotated[int, typer.Option(help="Rank of adapters; 0 trains every weight.")]
DType = Annotated[str, typer.Option(help="Of the weights.")]
Optimizer = Annotated[str, typer.Option(help="Whose state is held.")]
Head = Annotated[str, typer.Option(help="auto, off, or a number of chunks.")]
MemoryCap = Annotated[
    str | None, typer.Option(help="Such as 60GiB or 75%; the device's memory if not given.")
]
GradientError = Annotated[float, typer.Option(help="Relative error allowed in the gradient.")]
Codecs = Annotated[
    str | None, typer.Option(help="Names with commas between; all there are if not given.")
]
Costs = Annotated[
    str, typer.Option(help="roofline, or a cost file that was measured on such a device.")
]
Points = Annotated[int, typer.Option(min=2, help="Caps on the frontier.")]
SolverSeconds = Annotated[
    float, typer.Option(min=0.001, help="Time limit of the solver, for each cap.")
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="OUT", help="Write the plan here.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def plan_command(
    model: Model,
    device: Device = "h200",
    seqs: Sequences = 4,
    prompt: Prompt = 512,
    response: Response = 2048,
    lora: Lora = 0,
    dtype: DType = "bfloat16",
    optimizer: Optimizer = "adamw",
    head: Head = "auto",
    memory_cap: MemoryCap = None,
    gradient_error: GradientError = 0.0,
    codecs: Codecs = None,
    costs: Costs = "roofline",
    points: Points = 6,
    solver_seconds: SolverSeconds = 10.0,
    output: Output = None,
    as_json: AsJson = False,
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
    workload = Workload(model, seqs, prompt, response, lora, dtype)
    found = study(workload, device=device, optimizer=optimizer, points=points, **options)
    if output is not None:
        found.plan.save(output)
    emit(as_json, lambda: study_record(found), lambda width: render_study(found, width))
    found.plan.require_feasible()
