"""One compiled plan of a region, and how to choose among several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hilore_planner.attribution import PricedStep
from hilore_planner.correction import Aim
from hilore_planner.crowding import crowded_positions
from hilore_planner.partitioner import Modules
from hilore_planner.peak.step import StepPeak
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import replay, solve

Compiled = Callable[..., Any]


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
    """Of the compilation, what was spent on planning and on checking the peak."""
    compile_seconds: float = 0.0
    """All of it, but for measuring costs."""

    @property
    def added_ns(self) -> int:
        """Time that the plan's placement and head add to the update."""
        assert self.plan is not None
        return self.plan.solution.objective_ns + self.plan.head.head_ns

    @property
    def peak_bytes(self) -> int:
        """Peak of the compiled code; the problem's own estimate where it could not be run dry."""
        assert self.plan is not None
        return self.plan.predicted_peak_bytes

    @property
    def rank(self) -> tuple[int, int]:
        """The faster first, of equally fast ones that of the least memory."""
        return self.added_ns, self.peak_bytes

    @property
    def beyond_bytes(self) -> int:
        """What counts beyond the dry run."""
        return 0 if self.peak is None else self.peak_bytes - self.peak.peak_bytes

    def gain_ns(self, room_bytes: int) -> int:
        """Time that the placement would save with so much more memory, by its own estimate.

        The solver takes no longer than it took for the placement itself, or a second.
        """
        assert self.plan is not None
        problem, solution = self.plan.problem, self.plan.solution
        roomier = replace(problem, memory_cap_bytes=problem.memory_cap_bytes + room_bytes)
        seconds = max(1.0, solution.solver_seconds)
        found = solve(roomier, time_limit_seconds=seconds, warm_start=solution.placement)
        return solution.objective_ns - found.objective_ns

    def holding(self) -> tuple[str, ...]:
        """Units alive at the placement's peak, largest first; where there are none, buffers at the code's."""
        assert self.plan is not None
        found = replay(self.plan.problem, self.plan.solution.placement)
        units = tuple(name for name, _ in found.owners(found.peak_position))
        buffers = () if self.peak is None else tuple(owner.name for owner in self.peak.owners)
        return units or buffers


def fastest(tried: Sequence[Attempt], cap_bytes: int) -> Attempt | None:
    """The fastest plan whose compiled code is under the cap; of equally fast ones, that of the least memory."""
    fitting = [attempt for attempt in tried if attempt.plan and attempt.peak_bytes <= cap_bytes]
    return min(fitting, key=lambda each: each.rank, default=None)


def corrected(aim: Aim, last: Attempt) -> Aim:
    """The same aim with what an attempt at it taught about the estimate."""
    assert last.plan is not None
    assert last.peak is not None
    correction = aim.correction.after(
        last.plan, last.peak, beyond_bytes=last.beyond_bytes, blames_units=aim.cap_bytes is None
    )
    return replace(aim, correction=correction)


def is_repeated(tried: Sequence[Attempt]) -> bool:
    """Whether the last plan is one of those before: there is no more to learn."""
    *before, last = [_decisions(attempt.plan) for attempt in tried if attempt.plan is not None]
    return last in before


def _decisions(plan: PlacementPlan) -> tuple[Mapping[str, str], frozenset[int]]:
    """All that compiled code depends on: the placement, and which steps keep their order."""
    placement = plan.solution.placement
    return placement, crowded_positions(plan.problem, placement, plan.ordered_above_bytes)
