"""The ``hilore bench`` commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(no_args_is_help=True, help="Measure; results are written as data.")


def _here(name: str) -> str:
    from hilore_planner.bench.setting import device_here  # which loads torch

    return device_here(name)


SettingNames = Annotated[
    list[str] | None,
    typer.Option("--setting", help="NAME, or NAME:LAYERS for fewer layers; three if not given."),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.", callback=_here)]
SideBySide = Annotated[int, typer.Option(min=1, help="Processes that compile at a time.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="Where the rows are written.")]
PeakOutput = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Where the rows are written; those of other settings that are there stay. "
        "docs/results/peak.json or, on the CPU, peak_cpu.json if not given.",
    ),
]

PEAK_SETTINGS = ("qwen2.5-0.5b:4", "qwen2.5-1.5b", "qwen2.5-3b-lora16:4")
"""What is measured where no setting is given."""


@app.callback()
def root() -> None:
    """Measure on this machine; every row says with what, where and at which commit."""


@app.command("dead-rows")
def dead_rows(
    setting: Annotated[
        str, typer.Option(help="With sequences of zero advantage.")
    ] = "qwen2.5-0.5b-gsm8k",
    memory_cap: Annotated[str, typer.Option(help="For the planned update.")] = "24GiB",
    device: Device = "cuda",
    side_by_side: SideBySide = 6,
    output: Output = Path("docs/results/dead_rows.json"),
) -> None:
    """Updates with and without the sequences that have no gradient, each checkpointed and planned."""
    from hilore_planner.bench.dead_rows import bench_dead_rows, summary
    from hilore_planner.bench.runner import write_record
    from hilore_planner.bench.setting import setting_named
    from hilore_planner.sizes import parse_bytes

    cap = parse_bytes(memory_cap, name="--memory-cap")
    rows = bench_dead_rows(
        setting_named(setting), cap_bytes=cap, device=device, side_by_side=side_by_side
    )
    write_record(output, rows, device=device)
    print("\n".join(summary(rows)))


@app.command()
def peak(
    setting: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:LAYERS, three if not given; on the CPU an architecture, all six if not given."
        ),
    ] = None,
    caps: Annotated[int, typer.Option(min=2, help="Caps on each ladder.")] = 12,
    device: Device = "cuda",
    side_by_side: SideBySide = 8,
    resume: Annotated[
        bool,
        typer.Option(
            help="Leave out cells that the record has of this commit, and where ladders begin and end (not on the CPU)."
        ),
    ] = False,
    output: PeakOutput = None,
) -> None:
    """Predicted against measured peaks, from the smallest cap that is kept to everything stored."""
    from hilore_planner.bench.peak import Runs, bench_peak, summary
    from hilore_planner.bench.peak_cpu import bench_peak_cpu
    from hilore_planner.bench.runner import earlier_rows, recorded_settings
    from hilore_planner.bench.setting import setting_named
    from hilore_planner.bench.small_models import ARCHITECTURES

    path = output or Path("docs/results") / ("peak_cpu.json" if device == "cpu" else "peak.json")
    earlier = earlier_rows(path, device=device)
    if device == "cpu":
        parts = bench_peak_cpu(
            setting or list(ARCHITECTURES), rungs=caps, side_by_side=side_by_side
        )
    else:
        settings = [setting_named(name) for name in setting or PEAK_SETTINGS]
        runs = Runs(device, side_by_side, earlier if resume else ())
        parts = bench_peak(settings, rungs=caps, runs=runs)
    rows = recorded_settings(path, parts, device=device, before=earlier)
    print("\n".join(summary(rows)))


@app.command("compile-time")
def compile_time(
    layers: Annotated[int, typer.Option(min=1, help="Of the narrow model that is compiled.")] = 28,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="First calls of each kind; the one of least work is recorded."),
    ] = 1,
    costs: Annotated[
        str, typer.Option(help="Where times come from: roofline, measured, or a cost file.")
    ] = "roofline",
    device: Device = "cuda",
    output: Output = Path("docs/results/compile_time.json"),
) -> None:
    """What planning adds to the time that Inductor takes."""
    from hilore_planner.bench.compile_time import bench_compile_time, summary
    from hilore_planner.bench.runner import recorded

    found = bench_compile_time(layers, repeats=repeats, costs=costs, device=device)
    rows = recorded(output, found, device=device)
    print("\n".join(summary(rows)))


@app.command()
def cost(
    setting: SettingNames = None,
    caps: Annotated[int, typer.Option(min=2, help="Caps on each of the two ladders.")] = 6,
    costs: Annotated[
        str, typer.Option(help="Where times come from: measured, roofline, or a cost file.")
    ] = ("measured"),
    device: Device = "cuda",
    side_by_side: SideBySide = 13,
    output: Output = Path("docs/results/cost.json"),
) -> None:
    """Predicted against measured times of plans, and which kernels make the difference."""
    from hilore_planner.bench.cost import bench_cost, summary
    from hilore_planner.bench.runner import recorded
    from hilore_planner.bench.setting import setting_named

    found = bench_cost(
        [setting_named(name) for name in setting or ["qwen2.5-1.5b:8"]],
        rungs=caps,
        costs=costs,
        device=device,
        side_by_side=side_by_side,
    )
    rows = recorded(output, found, device=device)
    print("\n".join(summary(rows)))


@app.command()
def head(
    tokens: Annotated[
        list[int] | None, typer.Option(help="Of one update; 10240 and 40960 if not given.")
    ] = None,
    hidden: Annotated[int, typer.Option(help="Hidden size.")] = 1536,
    vocabulary: Annotated[int, typer.Option(help="Rows of the head's weight.")] = 151_936,
    chunks: Annotated[
        list[int] | None, typer.Option(help="Also tried; 4 and 8 if not given.")
    ] = None,
    update: Annotated[
        list[str] | None,
        typer.Option(help="Whole updates measured too, NAME or NAME:LAYERS; none if not given."),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Of hidden states and weight.")
    ] = "bfloat16",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each way.")] = 20,
    device: Device = "cuda",
    side_by_side: SideBySide = 4,
    output: Output = Path("docs/results/head.json"),
) -> None:
    """The language-model head alone, in several ways: time, memory, gradients against float64."""
    from hilore_planner.bench.head import HeadShape, bench_head, bench_update, summary
    from hilore_planner.bench.runner import write_record
    from hilore_planner.bench.setting import setting_named

    sizes = tokens or [10_240, 40_960]
    shapes = [HeadShape(size, hidden, vocabulary, "token", dtype=dtype) for size in sizes]
    shapes.append(HeadShape(sizes[0], hidden, vocabulary, "sequence", dtype=dtype))
    settings = [setting_named(name) for name in update or []]
    counts = tuple(chunks or (4, 8))
    rows = bench_head(shapes, counts, device=device, repeats=repeats, side_by_side=side_by_side)
    write_record(output, rows, device=device)  # what is cut short leaves what it has
    rows += bench_update(settings, device=device, side_by_side=side_by_side)
    write_record(output, rows, device=device)
    print("\n".join(summary(rows)))


@app.command()
def risk(
    setting: Annotated[
        str, typer.Option(help="trained; small for less time, tiny for a trial.")
    ] = "trained",
    device: Device = "cuda",
    side_by_side: SideBySide = 9,
    output: Output = Path("docs/results/risk.json"),
) -> None:
    """Predicted against measured gradient error, on a model trained for the purpose."""
    from hilore_planner.bench.risk.run import bench_risk
    from hilore_planner.bench.risk.setting import risk_setting_named
    from hilore_planner.bench.risk.summary import summary
    from hilore_planner.bench.runner import recorded

    found = bench_risk(risk_setting_named(setting), device=device, side_by_side=side_by_side)
    rows = recorded(output, found, device=device)
    print("\n".join(summary(rows)))


@app.command()
def codecs(
    tokens: Annotated[int, typer.Option(min=1, help="Rows of the kernels' values.")] = 10_240,
    features: Annotated[int, typer.Option(min=8, help="Columns of the kernels' values.")] = 8960,
    kernels: Annotated[bool, typer.Option(help="Also time the kernels around codecs.")] = True,
    update: Annotated[
        list[str] | None,
        typer.Option(
            help="Whole updates timed too, NAME or NAME:LAYERS, everything stored or compressed; none if not given."
        ),
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="Codecs that updates are compressed by; all if not given."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timings of each kernel.")] = 20,
    device: Device = "cuda",
    side_by_side: SideBySide = 6,
    output: Output = Path("docs/results/codecs.json"),
) -> None:
    """What codecs lose on values of several kinds, and what they add to the kernels around them and to updates."""
    from itertools import chain

    from hilore_planner.bench import codecs_update
    from hilore_planner.bench.codecs import LOSSY, bench_errors, bench_kernels, summary
    from hilore_planner.bench.runner import recorded
    from hilore_planner.bench.setting import setting_named

    settings = [setting_named(name) for name in update or []]
    rows = bench_errors()
    if kernels:
        rows += bench_kernels(tokens, features, device=device, repeats=repeats)
    updates = codecs_update.bench_updates(
        settings, codec or LOSSY, device=device, side_by_side=side_by_side
    )
    done = recorded(output, chain(rows, updates), device=device)
    print("\n".join([*summary(rows), *codecs_update.summary(done[len(rows) :])]))


@app.command()
def solver(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as qwen2.5-7b or qwen2.5-7b+lora16; of 24 to 126 layers if not given."
        ),
    ] = None,
    plans: Annotated[
        Path, typer.Option(help="Folder of the models' plan files; missing ones are made there.")
    ] = Path("bench_plans"),
    caps: Annotated[int, typer.Option(min=2, help="Caps of a sweep.")] = 25,
    relative_gap: Annotated[float, typer.Option(min=0.0, help="Asked of every solution.")] = 1e-3,
    output: Output = Path("docs/results/solver.json"),
) -> None:
    """How long solving takes: for one cap, for another, and for many; on the CPU, without running anything."""
    from hilore_planner.bench.runner import recorded
    from hilore_planner.bench.solver import MODELS, bench_solver, summary

    rows = bench_solver(model or MODELS, plans, caps=caps, relative_gap=relative_gap)
    print("\n".join(summary(recorded(output, rows, device="cpu"))))


@app.command()
def calibrate(
    setting: Annotated[str, typer.Option(help="NAME, or NAME:LAYERS.")] = "qwen2.5-1.5b",
    batches: Annotated[int, typer.Option(min=1, help="Microbatches to calibrate on.")] = 8,
    sequences: Annotated[
        list[int] | None, typer.Option(min=1, help="In a microbatch; the setting's if not given.")
    ] = None,
    device: Device = "cuda",
    output: Output = Path("docs/results/calibrate.json"),
) -> None:
    """How long a calibration takes, and how far risks add up; random weights."""
    from hilore_planner.bench.calibrate import bench_calibrate
    from hilore_planner.bench.runner import recorded
    from hilore_planner.bench.setting import setting_named

    given = setting_named(setting)
    sizes = [replace(given, sequences=count) for count in sequences or [given.sequences]]
    rows = (bench_calibrate(one, batches=batches, device=device) for one in sizes)
    for row in recorded(output, rows, device=device):
        print(f"{row['tokens']} tokens: {row['seconds']} s, margin {row['margin']}")
