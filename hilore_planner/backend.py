"""``torch.compile(update, backend="hilore")``."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hilore_planner.errors import HiloreError, PlanFileError
from hilore_planner.options import Options
from hilore_planner.partitioner import HilorePartitioner
from hilore_planner.passes import compat
from hilore_planner.passes.graph import JointGraph
from hilore_planner.plan import PlacementPlan
from hilore_planner.planning import PlannedRegion, plan_region, region_name
from hilore_planner.region import Surroundings, surroundings
from hilore_planner.sizes import format_bytes

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Count:
    """Regions with a backward that this process compiled, and how many of them were planned."""

    seen: int = 0
    planned: int = 0


_count = _Count()
_plan_files: dict[Path, list[str]] = {}
"""Graphs that share one plan option, in the order they were compiled."""


def hilore(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph so that its backward obeys a memory plan.

    Options are those of :class:`hilore_planner.options.Options`. A problem (unknown option,
    infeasible cap, foreign plan file) is raised as a ``HiloreError`` from the first call of the compiled function.
    """
    try:
        return _compile(gm, example_inputs, Options.parse(options), mode)
    except HiloreError as error:
        return _raiser(error)


def _raiser(error: HiloreError) -> Callable[..., Any]:
    """Dynamo would wrap an exception of its backend, or fall back to eager: raise it from the call instead."""

    def raise_error(*_: Any) -> Any:
        raise error

    return raise_error


def _compile(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, mode: str | None
) -> Callable[..., Any]:
    patches = {**(compat.mode_options(mode) if mode else {}), **options.inductor}
    if not _has_backward(inputs):
        return compat.compile_graph(gm, inputs, patches)  # type: ignore[no-any-return]
    around = surroundings(inputs)
    cap = options.resolve(
        around.total_bytes,
        around.usable_bytes,
        auto_reserved_bytes=around.pending_optimizer_bytes,
    )
    name = region_name(gm)

    def plan(joint: JointGraph) -> PlannedRegion:
        return _plan_or_load(joint, around, options, name, cap)

    key = _cache_key(gm, inputs, options, around, cap)
    partitioner = HilorePartitioner(key, plan)
    patches["custom_partitioner_fn"] = partitioner
    try:
        compiled = compat.compile_graph(gm, inputs, patches)
        made = _finish(partitioner, key)
        if made is None and not partitioner.unplanned_reason:
            # The graph came from Inductor's cache but its plan is gone from ours: make both again.
            compiled = compat.compile_graph(gm, inputs, {**patches, "fx_graph_cache": False})
            made = _finish(partitioner, key)
    except Exception:
        if partitioner.error is not None:
            raise partitioner.error from None
        raise
    _report(name, made, partitioner.unplanned_reason or "it has no backward")
    return compiled  # type: ignore[no-any-return]


def _has_backward(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in inputs
    )


def _plan_or_load(
    joint: JointGraph, around: Surroundings, options: Options, name: str, cap_bytes: int
) -> PlannedRegion:
    """The plan of the user's file if it is there and fits, else a new one."""
    from hilore_planner.planning import fingerprint

    path = _plan_file(options.plan, fingerprint(joint))
    if path is not None and path.exists():
        try:
            loaded = PlacementPlan.load(path)
            planned = plan_region(
                joint, around, options, region=name, cap_bytes=cap_bytes, loaded=loaded
            )
        except PlanFileError:
            if options.on_mismatch == "error":
                raise
        else:
            return planned
    planned = plan_region(joint, around, options, region=name, cap_bytes=cap_bytes)
    if path is not None:
        planned.plan.save(path)
    return planned


def _plan_file(path: Path | None, graph: str) -> Path | None:
    """The first graph gets the path itself, later ones ``NAME-2.json`` and so on."""
    if path is None:
        return None
    graphs = _plan_files.setdefault(path.resolve(), [])
    if graph not in graphs:
        graphs.append(graph)
    number = graphs.index(graph) + 1
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def _cache_key(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    options: Options,
    around: Surroundings,
    cap_bytes: int,
) -> str:
    """Hash of all a plan depends on: graph, shapes, options, memory around it, plan file, our own source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    digest.update(gm.print_readable(print_output=False).encode())
    for value in inputs:
        if isinstance(value, torch.Tensor):
            shape = [compat.hint(size) for size in value.shape]
            digest.update(f"{shape} {value.dtype} {value.requires_grad}".encode())
        elif isinstance(value, torch.SymInt):
            digest.update(str(compat.hint(value)).encode())
    digest.update(f"{options} {around.device_name} {around.base_bytes} {cap_bytes}".encode())
    if options.plan is not None and options.plan.exists():
        digest.update(options.plan.read_bytes())
    return digest.hexdigest()


def _finish(partitioner: HilorePartitioner, key: str) -> PlacementPlan | None:
    """Keep a new plan beside Inductor's cache; after a cache hit, fetch it from there."""
    kept = Path(compat.cache_folder()) / "hilore" / f"{key}.json"
    if partitioner.planned is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partitioner.planned.plan.save(kept)
        return partitioner.planned.plan
    return PlacementPlan.load(kept) if kept.exists() else None


def _report(name: str, plan: PlacementPlan | None, reason: str) -> None:
    """One line on stderr for every region: compiling takes long, and what happened must be seen."""
    _count.seen += 1
    _count.planned += plan is not None
    counted = f"planned {_count.planned} of {_count.seen} regions"
    if plan is None:
        print(f"hilore: {name}: not planned, {reason}; {counted}", file=sys.stderr)
        return
    solution = plan.solution
    print(
        f"hilore: {name}: cap {format_bytes(plan.problem.memory_cap_bytes)}, predicted peak "
        f"{format_bytes(solution.peak_bytes)}, saved {format_bytes(solution.saved_bytes)}, "
        f"{solution.status} in {solution.solver_seconds:.2f} s; {counted}",
        file=sys.stderr,
    )


def reset() -> None:
    """Forget compiled regions; ``torch._dynamo.reset()`` calls it."""
    _count.seen = _count.planned = 0
    _plan_files.clear()


hilore.reset = reset  # type: ignore[attr-defined]
