"""``hilore.plan``: the plan of an update that is neither compiled nor run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from hilore_planner.checking import workspaces
from hilore_planner.correction import Aim
from hilore_planner.costs import costs_for
from hilore_planner.errors import OptionError
from hilore_planner.head_decision import HeadTrial
from hilore_planner.head_plan import HeadPlan
from hilore_planner.offline.capture import Update, capture
from hilore_planner.offline.memory import state_count, surroundings_on
from hilore_planner.options import Options
from hilore_planner.partitioner import CleanGraph, CutSettings
from hilore_planner.passes import compat
from hilore_planner.passes.devices import DeviceProfile, profile_named
from hilore_planner.plan import CHECKED, PlacementPlan
from hilore_planner.planning import plan_region
from hilore_planner.posing import Posed, RegionProblems, pose
from hilore_planner.region import Surroundings, surroundings
from hilore_planner.uncollected import uncollected

_OF_COMPILING = ("plan", "on_mismatch", "dump_dir")
"""Options about what happens when a plan is compiled."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, besides the update: options, device, optimizer; read by ``Request.parse``."""

    options: Options
    profile: DeviceProfile | None
    """None: plan for the device of the inputs."""
    optimizer: str | None

    @classmethod
    def parse(cls, *, device: str | None, optimizer: str | None, **options: Any) -> Self:
        """Read the arguments of :func:`plan` but the update and its inputs.

        Raises:
            OptionError: one is unknown, unreadable, out of range, or only for compiling.
        """
        for name in _OF_COMPILING:
            if name in options:
                raise OptionError(
                    f"option {name} is for compiling an update; a plan made without is saved by its own .save(path)"
                )
        asked = Options.parse(options)
        profile = None if device is None else profile_named(device)
        if profile is not None:
            asked.resolve(profile.total_bytes, profile.total_bytes)
        if optimizer is not None:
            state_count(optimizer)
            if profile is None:
                raise OptionError(
                    f"optimizer is {optimizer!r}, but no device is named; without one, the state of the optimizers "
                    "there are is counted"
                )
        return cls(asked, profile, optimizer)

    def surroundings(self, inputs: Sequence[Any]) -> Surroundings:
        """What surrounds a region with these inputs."""
        if self.profile is None:
            return surroundings(inputs)
        return surroundings_on(self.profile, inputs, optimizer=self.optimizer)


@dataclass(frozen=True, slots=True)
class Traced:
    """An update's joint graph and what surrounds it, ready to be planned for one cap after another.

    Attributes:
        region: its name.
        cap_bytes: the cap that was asked for.
        is_here: whether the device is one that this process can measure on, that of the inputs.
    """

    region: str
    graph: CleanGraph
    settings: CutSettings
    problems: RegionProblems
    trial: HeadTrial
    cap_bytes: int
    is_here: bool
    _posed: dict[HeadPlan, Posed] = field(default_factory=dict, repr=False)
    """By the part of a head's plan that says how it is cut."""

    def plan(self, cap_bytes: int | None, *, must_fit: bool = True) -> PlacementPlan:
        """Decide about the head, then solve; None: for the least peak there is.

        ``must_fit`` is that of :func:`hilore_planner.planning.plan_region`.
        """
        trial = replace(self.trial, cap_bytes=cap_bytes or 1)
        with uncollected():
            head = self.graph.head(replace(self.settings, trial=trial))
            posed = self._with(head)
        planned = plan_region(
            posed, region=self.region, aim=Aim(cap_bytes), head=head, must_fit=must_fit
        )
        origin = planned.plan.provenance
        unchecked = replace(origin, options=origin.options | {CHECKED: "no"})
        return replace(planned.plan, provenance=unchecked)

    def _with(self, head: HeadPlan) -> Posed:
        """The problem of the graph with its head cut so."""
        way = HeadPlan(head.form, head.chunks, totals=head.totals)
        if way not in self._posed:
            self._posed[way] = pose(
                self.trial.taken(head) or self.graph.copied().cut(head),
                self.problems,
                workspaces(self.problems.around) if self.is_here else None,
            )
        return self._posed[way]


def plan(
    update: Update,
    *example_inputs: Any,
    device: str | None = None,
    optimizer: str | None = None,
    **options: Any,
) -> PlacementPlan:
    """Plan an update that is neither compiled nor run.

    Args:
        update: what would be given to ``torch.compile``; it must trace as one graph.
        example_inputs: what it would be called with. Fake tensors are enough: make the model and the inputs under
            one ``torch._subclasses.FakeTensorMode``.
        device: profile of the device to plan for (``"h200"``); None: that of the inputs.
        optimizer: whose state is held on that device (``"adamw"``); None: that of the optimizers there are, as
            when the update is compiled.
        options: as of the backend, except ``plan``, ``on_mismatch`` and ``dump_dir``.

    Returns:
        The plan; its peak is the planner's estimate, as no compiled code was checked.

    Raises:
        OptionError: an option that is unknown, unreadable, out of range, or only for compiling.
        RegionError: the update does not trace as one graph, or has no backward.
        InfeasibleError: nothing fits the cap; it has the smallest cap that something fits.
    """
    request = Request.parse(device=device, optimizer=optimizer, **options)
    traced = trace(request, update, *example_inputs)
    return traced.plan(traced.cap_bytes)


def trace(request: Request, update: Update, *example_inputs: Any) -> Traced:
    """The part of :func:`plan` before anything is decided."""
    asked, profile = request.options, request.profile
    captured = capture(
        update,
        example_inputs,
        attention="cpu" if profile is None else profile.attention,
        inductor=asked.inductor,
    )
    around = request.surroundings(captured.inputs)
    cap_bytes = asked.resolve(
        around.total_bytes,
        around.usable_bytes,
        auto_reserved_bytes=around.pending_optimizer_bytes,
    )
    graph = CleanGraph.of(
        compat.uncompiled(captured.gm, captured.gm.graph),
        asked.checkpoint_tags,
        num_forward_outputs=captured.num_forward_outputs,
        static_input_indices=captured.static_input_indices,
    )
    problems = RegionProblems(around, asked, costs_for(asked, around))
    return Traced(
        captured.region,
        graph,
        CutSettings(asked.checkpoint_tags, asked.head, head_totals=asked.head_totals),
        problems,
        problems.head_trial(cap_bytes),
        cap_bytes,
        is_here=profile is None,
    )
