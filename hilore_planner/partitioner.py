"""The hook Inductor calls with a joint graph: plan it, rewrite it, cut it in two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from hilore_planner.crowding import crowded_positions
from hilore_planner.errors import HiloreError
from hilore_planner.head_decision import HeadOption, HeadTrial, copied, decide_head
from hilore_planner.head_plan import HeadPlan, Totals
from hilore_planner.passes import compat
from hilore_planner.passes.apart import keep_apart
from hilore_planner.passes.graph import CheckpointTags, JointGraph, clean, describe, fingerprint
from hilore_planner.passes.head import (
    HeadRefusal,
    HeadSite,
    normalise_head,
    plan_head,
    rewrite_head,
)
from hilore_planner.passes.lead import lead_rebuilt
from hilore_planner.passes.order import keep_order, sink_free
from hilore_planner.passes.powers import write_powers
from hilore_planner.passes.rewrite import Rewriter
from hilore_planner.passes.tables import write_tables
from hilore_planner.planning import PlannedRegion
from hilore_planner.uncollected import uncollected

Modules = tuple[torch.fx.GraphModule, torch.fx.GraphModule]
Planner = Callable[[JointGraph, HeadPlan], PlannedRegion]
"""Plans a joint graph, given what was done to its head."""


@dataclass(frozen=True, slots=True)
class CutSettings:
    """What cutting a region depends on besides its plan.

    Attributes:
        head: whether to cut the language-model head: as seems best, never, or into so many chunks.
        head_totals: dtype in which its weight's gradient is added up.
        trial: to see what is best; without it chunks have a fixed size.
        decided_head: what an earlier plan of the graph with a fingerprint decided, if there is one.
    """

    checkpoint_tags: CheckpointTags = "override"
    head: HeadOption = "auto"
    trial: HeadTrial | None = None
    decided_head: Callable[[str], HeadPlan | None] = lambda _: None
    head_totals: Totals = "gradient"


class HilorePartitioner(compat.CustomPartitionerFn):
    """Plans and cuts one region.

    Inductor pickles the instance into its cache key and deep-copies it with its settings, so that only ``key`` counts:
    it must change with everything the plan depends on.
    """

    def __init__(self, key: str, plan: Planner, settings: CutSettings) -> None:
        self.key = key
        self._plan = plan
        self._settings = settings
        self.planned: PlannedRegion | None = None
        self.unplanned_reason = ""
        self.error: HiloreError | None = None
        self.graphs: Modules | None = None
        self.seconds = 0.0
        """Spent in here, but for measuring costs."""
        self.measuring_seconds = 0.0

    def uuid(self) -> str:
        """Part of Inductor's cache key."""
        return f"hilore {self.key}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (self.uuid(),))

    def __deepcopy__(self, memo: dict[int, Any]) -> HilorePartitioner:
        return self

    def __call__(
        self,
        gm: torch.fx.GraphModule,
        joint_inputs: Sequence[object],
        **keywords: Any,
    ) -> Modules:
        """Cut a joint graph; regions that cannot be planned go to torch's own partitioner, with the reason kept."""
        static = tuple(keywords.get("static_lifetime_input_indices") or ())
        outputs: int = keywords["num_fwd_outputs"]
        self.unplanned_reason = unplannable(gm, joint_inputs, outputs)
        if self.unplanned_reason:
            return compat.default_partition(gm, joint_inputs, **keywords)
        trial = self._settings.trial
        start, measured = time.perf_counter(), _measuring_seconds(trial)
        try:
            with uncollected():
                return self._cut(gm, outputs, static)
        except HiloreError as error:
            self.error = error
            raise
        finally:
            self.measuring_seconds = _measuring_seconds(trial) - measured
            self.seconds = time.perf_counter() - start - self.measuring_seconds

    def _cut(
        self, gm: torch.fx.GraphModule, num_forward_outputs: int, static: tuple[int, ...]
    ) -> Modules:
        gm = compat.uncompiled(gm, gm.graph)
        joint, head = prepare(
            gm, self._settings, num_forward_outputs=num_forward_outputs, static_input_indices=static
        )
        self.planned = self._plan(joint, head)
        saved = Rewriter(self.planned.graph, self.planned.plan.solution.placement).run()
        self.graphs = compat.extract_forward_backward(
            joint.gm,
            saved,
            num_forward_outputs=num_forward_outputs,
            static_input_indices=static,
        )
        lead_rebuilt(self.graphs[1])
        sink_free(self.graphs[1])
        crowded = crowded_nodes(self.planned)
        for graph in self.graphs:
            write_tables(graph)
            write_powers(graph)
            keep_order(graph, crowded)
        keep_apart(self.graphs[1])
        self.planned = self.planned.timed(*self.graphs)
        return self.graphs


def _measuring_seconds(trial: HeadTrial | None) -> float:
    return 0.0 if trial is None else trial.costs.measuring_seconds


@dataclass(frozen=True, slots=True)
class CleanGraph:
    """A joint graph whose head is not cut yet.

    Attributes:
        tags: what the program's own checkpointing says of its nodes.
        identity: its fingerprint.
        found: its head.
    """

    gm: torch.fx.GraphModule
    tags: Mapping[Node, str]
    identity: str
    found: HeadSite | HeadRefusal
    num_forward_outputs: int
    static_input_indices: Sequence[int]

    @classmethod
    def of(
        cls,
        gm: torch.fx.GraphModule,
        checkpoint_tags: CheckpointTags,
        *,
        num_forward_outputs: int,
        static_input_indices: Sequence[int],
    ) -> CleanGraph:
        """Clean a joint graph, in place."""
        tags = clean(gm, checkpoint_tags)
        normalise_head(gm)
        return cls(
            gm, tags, fingerprint(gm), plan_head(gm), num_forward_outputs, static_input_indices
        )

    def copied(self) -> CleanGraph:
        """The same with nodes of its own, to be cut in another way."""
        gm, nodes = copied(self.gm)
        tags = {nodes[node]: tag for node, tag in self.tags.items()}
        return replace(self, gm=gm, tags=tags, found=plan_head(gm))

    def head(self, settings: CutSettings) -> HeadPlan:
        """How its head is to be run; changes nothing."""
        decided = settings.decided_head(self.identity)
        if decided is not None:
            return decided
        return decide_head(
            self.gm,
            self.found,
            settings.head,
            settings.head_totals,
            self._described,
            settings.trial,
        )

    def cut(self, head: HeadPlan) -> JointGraph:
        """Cut its head, in place."""
        if head.chunks and isinstance(self.found, HeadSite):
            rewrite_head(self.gm, self.found, head.chunks, head.totals)
        return self._described(self.gm, {node: node for node in self.gm.graph.nodes})

    def _described(self, graph: torch.fx.GraphModule, nodes: Mapping[Node, Node]) -> JointGraph:
        """A copy of it, given which of its nodes became which."""
        return describe(
            graph,
            {nodes[node]: tag for node, tag in self.tags.items() if node in nodes},
            num_forward_outputs=self.num_forward_outputs,
            static_input_indices=self.static_input_indices,
            identity=self.identity,
        )


def prepare(
    gm: torch.fx.GraphModule,
    settings: CutSettings,
    *,
    num_forward_outputs: int,
    static_input_indices: Sequence[int],
) -> tuple[JointGraph, HeadPlan]:
    """Clean a joint graph and cut its head, in place or in a copy; also returns what was decided about the head."""
    found = CleanGraph.of(
        gm,
        settings.checkpoint_tags,
        num_forward_outputs=num_forward_outputs,
        static_input_indices=static_input_indices,
    )
    head = found.head(settings)
    tried = None if settings.trial is None else settings.trial.taken(head)
    return tried or found.cut(head), head


def crowded_nodes(planned: PlannedRegion) -> frozenset[str]:
    """Names of the nodes in steps that must keep their place."""
    plan, steps = planned.plan, planned.graph.schedule.steps
    crowded = crowded_positions(plan.problem, plan.solution.placement, plan.ordered_above_bytes)
    return frozenset(node.name for position in crowded for node in steps[position])


def unplannable(
    gm: torch.fx.GraphModule,
    joint_inputs: Sequence[object],
    num_forward_outputs: int,
) -> str:
    """Why a region is left to torch's own partitioner; empty where it is planned."""
    if not joint_inputs:
        return "it is a nested region, planned with the graph that calls it"
    if compat.backward_is_empty(gm, num_forward_outputs):
        return "its backward computes nothing"
    return ""
