"""What can be said of a workload on a device before either is there: a plan, and what other caps would cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hilore_planner.offline.planner import Request, Traced, trace
from hilore_planner.offline.workload import Workload, fake_update
from hilore_planner.plan import PlacementPlan

_ROOMY_BYTES = 2**60
"""A cap under which everything is stored."""


@dataclass(frozen=True, slots=True)
class Study:
    """A workload's plan on a device, and its frontier.

    Attributes:
        parameters: how many numbers the model has.
        trained: how many of them get a gradient.
        plan: for the cap that was asked for; its status says if nothing fits that.
        frontier: plans for caps from the smallest that something fits to what storing everything takes.
    """

    workload: Workload
    parameters: int
    trained: int
    plan: PlacementPlan
    frontier: tuple[PlacementPlan, ...]

    @property
    def smallest_cap_bytes(self) -> int | None:
        """The smallest cap that a placement was found for."""
        return self.frontier[0].problem.memory_cap_bytes if self.frontier else None

    @property
    def explained(self) -> PlacementPlan:
        """The plan whose peak is worth a look: for the smallest cap where nothing fits the one asked for."""
        return self.plan if self.plan.solution.is_placed else self.frontier[0]


def study(workload: Workload, *, device: str, optimizer: str, points: int, **options: Any) -> Study:
    """Plan a workload on a device.

    Args:
        workload: the update.
        device: name of its profile.
        optimizer: whose state is held.
        points: how many caps the frontier has, 2 or more; fewer where its ends are the same.
        options: as of :func:`hilore_planner.offline.planner.plan`.

    Raises:
        OptionError: an option, device, optimizer or model that is unknown or unreadable.
        RegionError: the model's update does not trace as one graph.
    """
    request = Request.parse(device=device, optimizer=optimizer, **options)
    update = fake_update(workload)
    traced = trace(request, update.loss, *update.inputs)
    traced = replace(traced, region=str(workload))
    plan = traced.plan(traced.cap_bytes, must_fit=False)
    return Study(workload, update.parameters, update.trained, plan, _frontier(traced, points))


def _frontier(traced: Traced, points: int) -> tuple[PlacementPlan, ...]:
    """Each cap decides about the head anew; the last is what storing everything takes."""
    everything = traced.plan(_ROOMY_BYTES)
    most_bytes = everything.solution.peak_bytes
    tightest = traced.plan(None, must_fit=False)
    if not tightest.solution.is_placed:
        return ()
    least_bytes = tightest.problem.memory_cap_bytes
    room_bytes = max(0, most_bytes - least_bytes)
    caps = {least_bytes + room_bytes * step // (points - 1) for step in range(1, points - 1)}
    between = (traced.plan(cap, must_fit=False) for cap in sorted(caps - {least_bytes, most_bytes}))
    last = everything.solve(
        memory_cap=most_bytes, solver_seconds=traced.problems.options.solver_seconds
    )
    return (tightest, *between, last) if least_bytes < most_bytes else (tightest,)
