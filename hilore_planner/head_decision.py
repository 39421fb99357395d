"""Decide how the language-model head is run: bytes of logits against time.

Everything about the region that is decided anyway, is decided once for each way to run its head: the placement problem
is solved, and the way that adds least time in all is taken. The problem is built from one cut graph: its chunks' logits
shrink as chunks get more, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch.fx import Graph, GraphModule, Node

from hilore_planner.head_plan import NO_HEAD, Form, HeadPlan, HeadWay, Totals
from hilore_planner.passes import compat
from hilore_planner.passes.cost import Costs
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.head import (
    HeadRefusal,
    HeadSite,
    added_ns,
    is_chunk_of_logits,
    plan_head,
    rewrite_head,
)
from hilore_planner.passes.head.shapes import tensor_of
from hilore_planner.passes.head.slices import longest_chunk
from hilore_planner.passes.ops import storage_bytes, tensor
from hilore_planner.passes.overwrite import alive_bytes
from hilore_planner.passes.schedule import Schedule, held_values
from hilore_planner.passes.units import RecoveryGraph
from hilore_planner.solvers import solve
from hilore_planner.solvers.problem import PlacementProblem, Solution

_SMALL_BYTES = 64 * 2**20
"""Logits below this are left whole: there is nothing worth deciding."""
_USUAL_BYTES = 320 * 2**20
"""Logits of a chunk whose products run at full speed on a large device."""
_LEAST_ROWS = 256
"""A chunk of fewer rows leaves a large device idle."""
_LEAST_BYTES = 32 * 2**20
"""Logits of a chunk below this are small beside everything else."""
_TRIAL_CHUNKS = 2
"""Enough to show what the first chunk does and those after it, and the number that is chosen most often: the trial's
graph is then the one that is planned, and what was measured for it is known."""

HeadOption = Literal["auto", "off"] | int
ProblemOf = Callable[[JointGraph], tuple[RecoveryGraph, PlacementProblem]]
Describe = Callable[[GraphModule, dict[Node, Node]], JointGraph]
"""Describes a copy of a graph; which of its nodes is which is given too."""


@dataclass(frozen=True, slots=True)
class HeadTrial:
    """What is needed to see what a way to run a head would cost.

    It is of one region: what was found out for one cap is known for others.

    Attributes:
        problem_of: builds the region's placement problem.
        costs: that price the head.
        solver_seconds: for all ways together.
        cap_bytes: of the problems.
        base_bytes: alive throughout, weights and inputs among them.
    """

    problem_of: ProblemOf
    costs: Costs
    solver_seconds: float
    cap_bytes: int
    base_bytes: int
    _posed: dict[Form, _Posed] = field(default_factory=dict, repr=False)
    _graphs: dict[tuple[Form, int], JointGraph] = field(default_factory=dict, repr=False)

    def posed(self, form: Form, chunks: int, cut: Callable[[], JointGraph]) -> _Posed:
        """The problem of a graph whose head was cut, or not."""
        if form not in self._posed:
            joint = cut()
            graph, problem = self.problem_of(joint)
            self._posed[form] = _Posed(problem, _alive_chunk_bytes(joint, graph.schedule))
            self._graphs[form, chunks] = joint
        posed = self._posed[form]
        return replace(posed, problem=replace(posed.problem, memory_cap_bytes=self.cap_bytes))

    def taken(self, head: HeadPlan) -> JointGraph | None:
        """The graph whose head was cut this way to try it; only once, as whoever takes it may rewrite it."""
        graph = self._graphs.get((head.form, head.chunks))
        self._graphs.clear()
        return graph

    def holds_all(self, gm: GraphModule) -> bool:
        """Whether the cap is more than all values that the graph ever makes take together."""
        sizes = {
            compat.storage_key(node): storage_bytes(value)
            for node in gm.graph.nodes
            if node.op == "call_function" and (value := tensor(node)) is not None
        }
        return self.base_bytes + sum(sizes.values()) <= self.cap_bytes


@dataclass(frozen=True, slots=True)
class _Posed:
    """The problem of one way to run a head.

    Attributes:
        wide: bytes of a chunk's logits and their gradient that are alive at each position.
    """

    problem: PlacementProblem
    wide: Sequence[int]


def decide_head(
    gm: GraphModule,
    found: HeadSite | HeadRefusal,
    option: HeadOption,
    totals: Totals,
    describe: Describe,
    trial: HeadTrial | None,
) -> HeadPlan:
    """How to run the head found in a clean joint graph; changes nothing.

    Without a ``trial`` nothing is solved: chunks then have about 320 MiB of logits.
    """
    if option == "off":
        return HeadPlan(reason="option head is 'off'")
    if isinstance(found, HeadRefusal):
        return NO_HEAD if found.node is None else HeadPlan(reason=found.reason)
    size_bytes = logits_bytes(found)
    if isinstance(option, int):
        return _fixed(found, option, totals)
    if size_bytes < _SMALL_BYTES:
        return HeadPlan(logits_bytes=size_bytes, reason="its logits are small")
    if trial is None:
        return _fixed(found, -(-size_bytes // _USUAL_BYTES), totals)
    if trial.holds_all(gm):
        return _roomiest(found, totals)
    ways = _cut_ways(gm, found, totals, describe, trial)
    if found.form == "rebuild":
        ways = [_whole_way(gm, size_bytes, describe, trial), *ways]
    return _chosen(found, ways, totals)


def _fixed(site: HeadSite, chunks: int, totals: Totals) -> HeadPlan:
    """A head cut into so many chunks, not chosen from others."""
    reason = site.why_rebuild
    return HeadPlan(site.form, chunks, _chunk_bytes(site, chunks), totals=totals, reason=reason)


def _roomiest(site: HeadSite, totals: Totals) -> HeadPlan:
    """What takes least time where memory is of no account."""
    reason = "there is memory for all that the update ever makes"
    if site.form == "rebuild":
        return HeadPlan(logits_bytes=logits_bytes(site), totals=totals, reason=reason)
    return replace(_fixed(site, 1, totals), reason=reason)


def logits_bytes(site: HeadSite) -> int:
    """Bytes of all logits whose rows are kept, at the traced sizes."""
    return compat.hint(site.rows) * _row_bytes(site)


def _chunk_bytes(site: HeadSite, chunks: int) -> int:
    """Bytes of the longest chunk's logits."""
    return longest_chunk(site.rows, chunks) * _row_bytes(site)


def _row_bytes(site: HeadSite) -> int:
    logits = tensor_of(site.logits)
    assert logits is not None
    return compat.hint(site.vocabulary) * logits.element_size()


def chunk_counts(rows: int, size_bytes: int) -> tuple[int, ...]:
    """Numbers of chunks worth looking at: powers of two, of chunks that are neither too short nor too small."""
    most = min(rows // _LEAST_ROWS, size_bytes // _LEAST_BYTES)
    return tuple(2**power for power in range(max(most, 1).bit_length()))


@dataclass(frozen=True, slots=True)
class _Tried:
    """A way to run a head; ``least_bytes`` is the smallest cap that something fits, where nothing fits the cap."""

    way: HeadWay
    least_bytes: int | None

    @property
    def rank(self) -> tuple[float, ...]:
        """What fits comes first, by time and bytes; else the smallest cap decides, and then the head's own time."""
        if self.way.added_ns is not None:
            return (0, self.way.added_ns, self.way.logits_bytes)
        least_bytes = float("inf") if self.least_bytes is None else self.least_bytes
        return (1, least_bytes, self.way.head_ns)


def _chosen(site: HeadSite, tried: Sequence[_Tried], totals: Totals) -> HeadPlan:
    """The way that ranks first."""
    best = min(tried, key=lambda each: each.rank).way
    reason = site.why_rebuild if best.chunks else "nothing is gained by making its logits twice"
    return HeadPlan(
        best.form,
        best.chunks,
        best.logits_bytes,
        best.head_ns,
        totals=totals,
        reason=reason,
        ways=tuple(each.way for each in tried),
    )


def _cut_ways(
    gm: GraphModule, site: HeadSite, totals: Totals, describe: Describe, trial: HeadTrial
) -> list[_Tried]:
    def cut() -> JointGraph:
        copy, nodes = copied(gm)
        found = plan_head(copy)
        assert isinstance(found, HeadSite)
        rewrite_head(copy, found, _TRIAL_CHUNKS, totals)
        return describe(copy, nodes)

    posed = trial.posed(site.form, _TRIAL_CHUNKS, cut)
    trial_bytes = _chunk_bytes(site, _TRIAL_CHUNKS)
    counts = chunk_counts(compat.hint(site.rows), logits_bytes(site))
    seconds = trial.solver_seconds / len(counts)
    return [
        _tried(
            _scaled(posed, _chunk_bytes(site, chunks), trial_bytes),
            seconds,
            site.form,
            chunks,
            _chunk_bytes(site, chunks),
            added_ns(site, chunks, totals, trial.costs),
        )
        for chunks in counts
    ]


def _whole_way(gm: GraphModule, size_bytes: int, describe: Describe, trial: HeadTrial) -> _Tried:
    posed = trial.posed("whole", 0, lambda: describe(*copied(gm)))
    return _tried(posed.problem, trial.solver_seconds, "whole", 0, size_bytes, 0)


def _tried(
    problem: PlacementProblem, seconds: float, form: Form, chunks: int, size_bytes: int, ns: int
) -> _Tried:
    """A way to run the head, with what the region's plan would be."""
    solution: Solution = solve(problem, time_limit_seconds=seconds)
    objective_ns = solution.objective_ns if solution.is_placed else None
    way = HeadWay(form, chunks, size_bytes, ns, objective_ns)
    return _Tried(way, solution.smallest_feasible_cap_bytes)


def _alive_chunk_bytes(joint: JointGraph, schedule: Schedule) -> list[int]:
    """Bytes of a chunk's logits and their gradient that are alive at each step."""
    return alive_bytes(
        schedule,
        held_values(joint, schedule),
        0,
        is_counted=lambda held: is_chunk_of_logits(held.storage.maker),
    )


def _scaled(posed: _Posed, chunk_bytes: int, trial_bytes: int) -> PlacementProblem:
    """The problem as it would be with chunks of other logits than the trial's."""
    problem = posed.problem
    positions = tuple(
        replace(
            position,
            fixed_bytes=position.fixed_bytes - alive + -(-alive * chunk_bytes // trial_bytes),
        )
        for position, alive in zip(problem.positions, posed.wide, strict=True)
    )
    return replace(problem, positions=positions)


def copied(gm: GraphModule) -> tuple[GraphModule, dict[Node, Node]]:
    """The same nodes and values in a graph of its own, and which node became which."""
    graph, nodes = Graph(), dict[Node, Node]()
    output = graph.output(graph.graph_copy(gm.graph, nodes))
    output.meta = dict(gm.graph.output_node().meta)
    return compat.uncompiled(gm, graph), nodes
