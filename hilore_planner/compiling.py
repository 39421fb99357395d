"""Compile a region so that its peak, on the code Inductor really wrote, is under the cap.

The solver works on an estimate: it cannot know what Inductor fuses. So each compiled plan is run dry, line by line of
the generated code; where its peak is above the cap, or well below it while something is recomputed, the difference
corrects the estimate and the region is planned again. The best plan under the cap is returned; one above never is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hilore_planner.correction import NO_CORRECTION, Correction
from hilore_planner.errors import InfeasibleError, NoPlacementError, PlanFileError, RegionError
from hilore_planner.partitioner import CutSettings, HilorePartitioner, Modules, Planner
from hilore_planner.passes import compat
from hilore_planner.passes.cost import PricedStep
from hilore_planner.peak.step import StepPeak, step_peak
from hilore_planner.peak.timeline import TensorSpec
from hilore_planner.peak.workspace import MeasuredWorkspaces
from hilore_planner.peak.wrapper import Wrapper, capture_wrappers
from hilore_planner.plan import PlacementPlan
from hilore_planner.region import Surroundings
from hilore_planner.sizes import format_bytes

log = logging.getLogger(__name__)

MAX_ROUNDS = 4
_WORTH_A_ROUND = 0.02
"""Share of the room under the cap that must be unused before it is worth compiling again."""

Compiled = Callable[..., Any]
PlannerOf = Callable[[Correction], Planner]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One compiled plan; ``plan`` is None where the region was not planned, for ``reason``."""

    compiled: Compiled
    plan: PlacementPlan | None
    peak: StepPeak | None = None
    reason: str = ""
    graphs: Modules | None = None
    """Forward and backward as they went to Inductor; None if they came from its cache."""
    steps: tuple[PricedStep, ...] = ()
    """What those graphs run, each with its predicted time."""
    planning_seconds: float = 0.0
    """Of the compilation, what was spent on planning."""
    compile_seconds: float = 0.0

    @property
    def added_ns(self) -> int:
        """Time the plan adds to the update."""
        assert self.plan is not None
        return self.plan.solution.objective_ns

    @property
    def peak_bytes(self) -> int:
        """Peak of the compiled code; the problem's own estimate where it could not be run dry."""
        assert self.plan is not None
        return self.plan.predicted_peak_bytes


@dataclass(frozen=True, slots=True)
class RegionCompiler:
    """Everything about one region that stays the same from round to round."""

    gm: torch.fx.GraphModule
    inputs: Sequence[Any]
    patches: dict[str, Any]
    around: Surroundings
    cap_bytes: int
    key: str
    planner: PlannerOf
    settings: CutSettings
    is_given: Callable[[PlacementPlan], bool]
    """Whether a plan comes from the user's file: then it is checked, and no other is looked for."""

    def run(self) -> Attempt:
        """Plan and compile until the peak is under the cap and little room is left.

        Raises:
            InfeasibleError: no plan was found whose compiled code stays under the cap.
        """
        tried: list[Attempt] = []
        correction = NO_CORRECTION
        while len(tried) < MAX_ROUNDS:
            try:
                last = self._attempt(correction, tried)
            except NoPlacementError as error:
                least_bytes = error.smallest_feasible_cap_bytes
                if not tried or least_bytes is None:
                    raise
                if self._best(tried) is not None:
                    break
                # The difference found may be that of one plan only: look what the nearest plan really takes.
                correction = correction.eased(least_bytes - self.cap_bytes)
                last = self._attempt(correction, tried)
            if last.plan is None or last.peak is None:
                return last
            if self.is_given(last.plan):
                return self._checked(last)
            tried.append(last)
            self._log(len(tried), last)
            if self._is_good(last) or _is_repeated(tried):
                break
            slack_bytes = last.peak_bytes - last.peak.peak_bytes
            correction = correction.after(last.plan, last.peak, beyond_bytes=slack_bytes)
        best = self._best(tried)
        if best is None:
            raise self._infeasible(tried)
        return best

    def _best(self, tried: Sequence[Attempt]) -> Attempt | None:
        """The fastest plan whose compiled code is under the cap."""
        fitting = [attempt for attempt in tried if attempt.peak_bytes <= self.cap_bytes]
        return min(fitting, key=lambda attempt: attempt.added_ns, default=None)

    def _checked(self, attempt: Attempt) -> Attempt:
        if attempt.peak_bytes > self.cap_bytes:
            raise PlanFileError(
                f"the plan's compiled code needs {format_bytes(attempt.peak_bytes)} here, more than the cap of "
                f"{format_bytes(self.cap_bytes)}; raise memory_cap, or re-solve the plan for a lower cap "
                "(`hilore solve PLAN --memory-cap ...`)"
            )
        return attempt

    def _attempt(self, correction: Correction, tried: Sequence[Attempt]) -> Attempt:
        settings = self._after(tried)
        key = f"{self.key}-{correction.key}"
        attempt = self._compile(key, correction, settings, self.patches)
        if attempt.plan is None and not attempt.reason:
            # The graph came from Inductor's cache but its plan is gone from ours: make both again.
            attempt = self._compile(
                key, correction, settings, {**self.patches, "fx_graph_cache": False}
            )
        return attempt

    def _after(self, tried: Sequence[Attempt]) -> CutSettings:
        """The settings for one more round: its positions are those of the others only if its head is cut alike."""
        plan = tried[-1].plan if tried else None
        if plan is None:
            return self.settings
        return replace(self.settings, decided_head=lambda _: plan.head)

    def _compile(
        self, key: str, correction: Correction, settings: CutSettings, patches: dict[str, Any]
    ) -> Attempt:
        start = time.perf_counter()
        partitioner = HilorePartitioner(key, self.planner(correction), settings)
        try:
            with capture_wrappers() as wrappers:
                compiled = compat.compile_graph(
                    self.gm, self.inputs, {**patches, "custom_partitioner_fn": partitioner}
                )
        except Exception:
            if partitioner.error is not None:
                raise partitioner.error from None
            raise
        seconds = time.perf_counter() - start
        plan = _kept_plan(partitioner, key)
        if plan is None:
            return Attempt(compiled, None, reason=partitioner.unplanned_reason)
        peak = self._dry_run(wrappers)
        if peak is not None:
            figures = replace(plan.predicted, peak_bytes=peak.peak_bytes + self.around.slack_bytes)
            plan = replace(plan, predicted=figures)
        planned = partitioner.planned
        return Attempt(
            compiled,
            plan,
            peak,
            graphs=partitioner.graphs,
            steps=planned.steps if planned is not None else (),
            planning_seconds=partitioner.seconds,
            compile_seconds=seconds,
        )

    def _dry_run(self, wrappers: Sequence[Wrapper]) -> StepPeak | None:
        """The compiled update's peak; None, with a warning, where its code cannot be run dry."""
        forward = next((w for w in wrappers if not w.is_backward), None)
        backward = next((w for w in wrappers if w.is_backward), None)
        if forward is None or backward is None:
            log.warning("the peak of the compiled code is not checked: it was not captured")
            return None
        table = Path(compat.cache_folder()) / "hilore" / f"workspaces-{self.around.slug}.json"
        table.parent.mkdir(parents=True, exist_ok=True)
        inputs = forward.example_inputs
        try:
            return step_peak(
                forward,
                backward,
                inputs,
                device=self.around.device,
                outside_bytes=max(0, self.around.base_bytes - _storage_bytes(inputs)),
                workspaces=MeasuredWorkspaces(self.around.device, table),
                updates=2,
            )
        except RegionError as error:
            log.warning("the peak of the compiled code is not checked: %s", error)
            return None

    def _is_good(self, attempt: Attempt) -> bool:
        """Under the cap, and nothing much left to gain."""
        assert attempt.plan is not None
        room = self.cap_bytes - attempt.peak_bytes
        if room < 0:
            return False
        least = _WORTH_A_ROUND * (self.cap_bytes - self.around.base_bytes)
        unused_by_solver = self.cap_bytes - attempt.plan.solution.peak_bytes
        return room < least or unused_by_solver > least

    def _log(self, number: int, attempt: Attempt) -> None:
        assert attempt.plan is not None
        log.info(
            "round %d: estimated peak %s, compiled %s, cap %s",
            number,
            format_bytes(attempt.plan.solution.peak_bytes),
            format_bytes(attempt.peak_bytes),
            format_bytes(self.cap_bytes),
        )

    def _infeasible(self, tried: Sequence[Attempt]) -> InfeasibleError:
        least = min(tried, key=lambda attempt: attempt.peak_bytes)
        owners = least.peak.owners[:5] if least.peak is not None else ()
        return InfeasibleError(
            f"memory_cap {format_bytes(self.cap_bytes)} ({self.cap_bytes} bytes): after {len(tried)} rounds the "
            f"compiled update still needs {format_bytes(least.peak_bytes)} ({least.peak_bytes} bytes); raise "
            "memory_cap, or shrink the microbatch",
            smallest_feasible_cap_bytes=least.peak_bytes,
            holding=tuple(owner.name for owner in owners),
        )


def _is_repeated(tried: Sequence[Attempt]) -> bool:
    """Whether the last plan is one of those before: there is no more to learn."""
    placements = [attempt.plan.solution.placement for attempt in tried if attempt.plan is not None]
    return placements[-1] in placements[:-1]


def _storage_bytes(specs: Sequence[object]) -> int:
    sizes = {
        spec.alias_group or index: spec.storage_bytes
        for index, spec in enumerate(specs)
        if isinstance(spec, TensorSpec)
    }
    return sum(size or 0 for size in sizes.values())


def _kept_plan(partitioner: HilorePartitioner, key: str) -> PlacementPlan | None:
    """Keep a new plan beside Inductor's cache; after a cache hit, fetch it from there."""
    kept = Path(compat.cache_folder()) / "hilore" / f"{key}.json"
    if partitioner.planned is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partitioner.planned.plan.save(kept)
        return partitioner.planned.plan
    return PlacementPlan.load(kept) if kept.exists() else None
