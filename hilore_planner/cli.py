"""The ``hilore`` command: read, compare and re-solve plans, without torch and without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hilore_planner.attribution import profiled
from hilore_planner.bench.command import app as bench_app
from hilore_planner.errors import HiloreError
from hilore_planner.explain import explain as explain_plan
from hilore_planner.offline.command import plan_command
from hilore_planner.plan import PlacementPlan
from hilore_planner.refine import refined
from hilore_planner.render import records
from hilore_planner.render.diff import diff as render_diff
from hilore_planner.render.explain import explain as render_explanation
from hilore_planner.render.header import header as render_figures
from hilore_planner.render.output import emit
from hilore_planner.render.profile import profile as render_profile
from hilore_planner.render.profile import profile_record
from hilore_planner.render.show import show as render_plan
from hilore_planner.render.sweep import sweep as render_sweep
from hilore_planner.sizes import parse_range
from hilore_planner.verify_command import verify_command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PlanFile = Annotated[Path, typer.Argument(help="A plan file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
GradientError = Annotated[
    float | None,
    typer.Option(help="Relative error allowed in the gradient; the plan's own if not given."),
]
SolverSeconds = Annotated[
    float, typer.Option(min=0.001, help="Time limit of the solver, for each cap.")
]


app.add_typer(bench_app, name="bench")
app.command("plan")(plan_command)
app.command("verify")(verify_command)


@app.callback()
def root() -> None:
    """Read, compare and re-solve activation-memory plans."""


@app.command()
def show(
    plan: PlanFile,
    everything: Annotated[
        bool, typer.Option("--all", help="List small units that are stored in any case, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a plan: its figures, units and totals."""
    loaded = PlacementPlan.load(plan)
    emit(
        as_json,
        lambda: records.plan_record(loaded),
        lambda width: render_plan(loaded, width, everything=everything),
    )


@app.command()
def solve(
    plan: PlanFile,
    memory_cap: Annotated[
        str | None, typer.Option(help="Such as 20GiB; the plan's own if not given.")
    ] = None,
    gradient_error: GradientError = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="DUMP_DIR", help="With times as hilore_planner.profile measured them."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Write the plan here.")
    ] = None,
    solver_seconds: SolverSeconds = 10.0,
    as_json: AsJson = False,
) -> None:
    """Solve a plan's problem for another memory cap or gradient error, or with other times.

    Where nothing fits, OUT is written too: solving it for the smallest cap that something fits cannot fail.
    """
    loaded = PlacementPlan.load(plan)
    if profile is not None:
        loaded = refined(loaded, profiled(profile))
    solved = loaded.solve(
        memory_cap=memory_cap,
        gradient_error=gradient_error,
        solver_seconds=solver_seconds,
        must_fit=False,
    )
    if output is not None:
        solved.save(output)
    solved.require_feasible()
    render = render_plan if output is None else render_figures
    emit(as_json, lambda: records.plan_record(solved), lambda width: render(solved, width))


@app.command()
def sweep(
    plan: PlanFile,
    caps: Annotated[
        str, typer.Option(metavar="FIRST:LAST:STEP", help="Such as 16GiB:40GiB:2GiB, or A,B,C.")
    ],
    gradient_error: GradientError = None,
    solver_seconds: SolverSeconds = 10.0,
    as_json: AsJson = False,
) -> None:
    """Solve a plan's problem for a range of memory caps."""
    sizes = parse_range(caps, name="--caps")
    plans = PlacementPlan.load(plan).sweep(
        sizes, gradient_error=gradient_error, solver_seconds=solver_seconds
    )
    emit(as_json, lambda: records.sweep_record(plans), lambda width: render_sweep(plans, width))


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A plan file.")],
    after: Annotated[Path, typer.Argument(help="A plan file to compare with it.")],
    as_json: AsJson = False,
) -> None:
    """Print what changes from plan A to plan B."""
    found = PlacementPlan.load(before).diff(PlacementPlan.load(after))
    emit(as_json, lambda: records.diff_record(found), lambda width: render_diff(found, width))


@app.command()
def explain(
    plan: PlanFile,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="DUMP_DIR", help="Also where its time goes, by hilore_planner.profile."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print who holds the memory at the peak, and what lowers it."""
    loaded = PlacementPlan.load(plan)
    found = explain_plan(loaded)
    times = None if profile is None else profiled(profile)
    emit(
        as_json,
        lambda: (
            records.explanation_record(loaded, found)
            | ({} if times is None else {"profile": profile_record(times)})
        ),
        lambda width: (
            render_explanation(loaded, found, width)
            + ([] if times is None else render_profile(times, width))
        ),
    )


def main() -> None:
    """Runs the command line: 0 if done, 1 with one line on stderr if not, 2 if misused."""
    try:
        app()
    except HiloreError as error:
        print(f"hilore: {error}", file=sys.stderr)
        sys.exit(1)
