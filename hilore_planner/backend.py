"""``torch.compile(update, backend="hilore")``."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hilore_planner.attempt import Attempt
from hilore_planner.checking import workspaces
from hilore_planner.compiling import RegionCompiler
from hilore_planner.correction import Aim
from hilore_planner.costs import costs_for
from hilore_planner.errors import HiloreError, PlanFileError
from hilore_planner.head_decision import HeadTrial
from hilore_planner.head_plan import HeadPlan
from hilore_planner.kept import KeptPlans
from hilore_planner.options import Options
from hilore_planner.partitioner import CutSettings, Planner
from hilore_planner.passes import compat
from hilore_planner.passes.cost import Costs
from hilore_planner.passes.graph import JointGraph
from hilore_planner.plan import PlacementPlan
from hilore_planner.planning import PlannedRegion, plan_region, region_name
from hilore_planner.posing import RegionProblems, pose
from hilore_planner.region import Surroundings, surroundings
from hilore_planner.sizes import format_bytes


@dataclass(slots=True)
class _Count:
    """Regions with a backward that this process compiled, and how many of them were planned."""

    seen: int = 0
    planned: int = 0


_count = _Count()
_plan_files: dict[Path, list[str]] = {}
"""Graphs that share one plan option, in the order they were compiled."""


_KEEP_PLACE = {"allow_buffer_reuse": False}
"""The plan fixes what is alive when: a dead buffer goes back to the allocator at once instead of waiting for another of
its size."""


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
    asked = {**(compat.mode_options(mode) if mode else {}), **options.inductor}
    if not _has_backward(inputs):
        return compat.compile_graph(gm, inputs, asked)  # type: ignore[no-any-return]
    patches = {**_KEEP_PLACE, **(compat.WHOLE_COPIES if _may_compress(options) else {}), **asked}
    around = surroundings(inputs)
    cap = options.resolve(
        around.total_bytes,
        around.usable_bytes,
        auto_reserved_bytes=around.pending_optimizer_bytes,
    )
    source = PlanSource(options, around, region_name(gm), costs_for(options, around))
    attempt = RegionCompiler(
        gm=gm,
        inputs=inputs,
        patches=patches,
        around=around,
        cap_bytes=cap,
        kept=KeptPlans(_region_key(gm, inputs, patches, options, around)),
        planner=source.planner,
        settings=source.settings,
        is_given=source.is_given,
    ).run()
    if attempt.plan is not None:
        source.write(attempt.plan)
    if options.dump_dir is not None:
        _dump(options.dump_dir, source.region, attempt)
    _report(source.region, attempt.plan, attempt.reason or "it has no backward")
    return attempt.compiled


@dataclass(slots=True)
class PlanSource:
    """Where a region's plan comes from: the user's file if it is there and fits, else the solver."""

    options: Options
    around: Surroundings
    region: str
    costs: Costs
    _is_replaced: bool = False
    _problems: RegionProblems = field(init=False)
    _trial: HeadTrial = field(init=False)

    def __post_init__(self) -> None:
        self._problems = RegionProblems(self.around, self.options, self.costs)
        self._trial = self._problems.head_trial(1)

    def is_given(self, plan: PlacementPlan) -> bool:
        """Whether a plan of this region is that of the user's file, which :meth:`write` has not made yet."""
        path = _plan_file(self.options.plan, plan.provenance.fingerprint)
        return path is not None and path.exists() and not self._is_replaced

    def decided_head(self, fingerprint: str) -> HeadPlan | None:
        """How the user's file says the head of a graph is run; None if there is no such file, or it is of another."""
        path = _plan_file(self.options.plan, fingerprint)
        if path is None or not path.exists() or self._is_replaced:
            return None
        try:
            plan = PlacementPlan.load(path)
        except PlanFileError:
            return None  # planning meets it again, and says so or replaces it
        return plan.head if plan.provenance.fingerprint == fingerprint else None

    def settings(self, aim: Aim) -> CutSettings:
        """What cutting the region for an aim depends on; for the least peak, the head is cut as finely as may be."""
        options = self.options
        trial = replace(self._trial, cap_bytes=aim.cap_bytes or 1)
        return CutSettings(
            options.checkpoint_tags, options.head, trial, self.decided_head, options.head_totals
        )

    def planner(self, aim: Aim, kept: PlacementPlan | None = None) -> Planner:
        """What the partitioner calls with a joint graph; ``kept`` is a plan to follow once more."""

        def plan(joint: JointGraph, head: HeadPlan) -> PlannedRegion:
            if kept is not None:
                return self._solve(joint, head, aim, kept)
            path = _plan_file(self.options.plan, joint.fingerprint)
            if path is not None and path.exists() and not self._is_replaced:
                try:
                    return self._solve(joint, head, aim, PlacementPlan.load(path))
                except PlanFileError:
                    if self.options.on_mismatch == "error":
                        raise
                    self._is_replaced = True
            return self._solve(joint, head, aim, None)

        return plan

    def _solve(
        self,
        joint: JointGraph,
        head: HeadPlan,
        aim: Aim,
        loaded: PlacementPlan | None,
    ) -> PlannedRegion:
        posed = pose(joint, self._problems, workspaces(self.around))
        return plan_region(posed, region=self.region, aim=aim, head=head, loaded=loaded)

    def write(self, plan: PlacementPlan) -> None:
        """Write the user's plan file, unless the plan came from it."""
        path = _plan_file(self.options.plan, plan.provenance.fingerprint)
        if path is not None and not self.is_given(plan):
            plan.save(path)


def _has_backward(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in inputs
    )


def _may_compress(options: Options) -> bool:
    """Whether an error is allowed, by the options or by a plan file that is to be followed."""
    if options.gradient_error > 0:
        return True
    return any(_allowed_error(path) > 0 for path in _given_files(options.plan))


def _given_files(path: Path | None) -> list[Path]:
    if path is None:
        return []
    numbered = (_numbered(path, number) for number in itertools.count(1))
    return list(itertools.takewhile(Path.exists, numbered))


def _allowed_error(path: Path) -> float:
    try:
        return PlacementPlan.load(path).problem.gradient_error
    except PlanFileError:
        return 0.0  # planning meets it again, and says so or replaces it


def _plan_file(path: Path | None, graph: str) -> Path | None:
    """The first graph gets the path itself, later ones ``NAME-2.json`` and so on."""
    if path is None:
        return None
    graphs = _plan_files.setdefault(path.resolve(), [])
    if graph not in graphs:
        graphs.append(graph)
    number = graphs.index(graph) + 1
    return _numbered(path, number)


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def _region_key(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    patches: Mapping[str, object],
    options: Options,
    around: Surroundings,
) -> str:
    """Hash of all a plan depends on but the cap: graph, shapes, options, what is around, files, our own source."""
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
    here = replace(options, memory_cap=None, reserved=0, plan=None, dump_dir=None)
    digest.update(f"{here} {patches} {around.slug} {around.base_bytes}".encode())
    files = [path for path in (options.plan, options.costs) if isinstance(path, Path)]
    for path in files:
        if path.exists():
            digest.update(b"file" + path.read_bytes())
    return digest.hexdigest()


def _dump(folder: Path, region: str, attempt: Attempt) -> None:
    """Write a region's plan, graphs and predicted steps; of graphs from Inductor's cache there is only the plan."""
    target = folder / "".join(c if c.isalnum() or c in ".-" else "_" for c in region)
    target.mkdir(parents=True, exist_ok=True)
    if attempt.plan is not None:
        attempt.plan.save(target / "plan.json")
    for name, graph in zip(("forward", "backward"), attempt.graphs or (), strict=False):
        (target / f"{name}.py").write_text(graph.print_readable(print_output=False))
    if attempt.steps:
        record = {
            "planning_seconds": attempt.planning_seconds,
            "compile_seconds": attempt.compile_seconds,
            "steps": [asdict(step) for step in attempt.steps],
        }
        (target / "steps.json").write_text(json.dumps(record, indent=1) + "\n")


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
        f"{format_bytes(plan.predicted_peak_bytes)}, saved {format_bytes(solution.saved_bytes)}, "
        f"{solution.status} in {solution.solver_seconds:.2f} s; {counted}",
        file=sys.stderr,
    )


def reset() -> None:
    """Forget compiled regions; ``torch._dynamo.reset()`` calls it."""
    _count.seen = _count.planned = 0
    _plan_files.clear()


hilore.reset = reset  # type: ignore[attr-defined]
