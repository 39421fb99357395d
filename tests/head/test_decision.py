"""How finely a head is cut is decided with everything else: bytes of logits against time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hilore_planner.correction import Aim
from hilore_planner.grpo.head import log_probs
from hilore_planner.head_decision import HeadTrial, chunk_counts
from hilore_planner.head_plan import NO_HEAD, HeadPlan
from hilore_planner.options import Options
from hilore_planner.partitioner import CutSettings, prepare
from hilore_planner.passes.cost import Roofline
from hilore_planner.passes.devices import profile_named
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.head.slices import static_bounds
from hilore_planner.passes.units import RecoveryGraph
from hilore_planner.planning import plan_region
from hilore_planner.posing import RegionProblems, pose
from hilore_planner.region import Surroundings
from hilore_planner.solvers.problem import PlacementProblem
from tests.passes.joint import Traced, copied, trace_update

ROWS, HIDDEN, WIDE, VOCABULARY, LAYERS = 8192, 1024, 16_384, 151_936, 4
LOGITS = 2 * ROWS * VOCABULARY
GIB = 2**30


def token_level(logp: Tensor, scale: Tensor) -> Tensor:
    return -(logp * scale).sum() / scale.sum()


def sequence_level(logp: Tensor, scale: Tensor) -> Tensor:
    """One ratio for each of four sequences."""
    ratio = torch.exp(logp.view(4, -1).mean(1))
    return -(ratio * scale[:4]).mean()


def wanted(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)


def traced(loss: Callable[[Tensor, Tensor], Tensor]) -> Traced:
    """A few layers and a head of real size, on fake tensors."""

    def update(
        hidden: Tensor, weights: list[Tensor], head: Tensor, targets: Tensor, scale: Tensor
    ) -> Tensor:
        for weight in weights:
            hidden = hidden + torch.tanh(hidden @ weight)
        return loss(log_probs(hidden, head, targets), scale)

    with FakeTensorMode():
        hidden = wanted(ROWS, HIDDEN)
        weights = [wanted(HIDDEN, HIDDEN) for _ in range(LAYERS)]
        head = wanted(VOCABULARY, HIDDEN)
        targets, scale = torch.empty(ROWS, dtype=torch.int64), torch.empty(ROWS)
        return trace_update(update, hidden, weights, head, targets, scale)


@pytest.fixture(scope="module")
def early() -> Traced:
    return traced(token_level)


@pytest.fixture(scope="module")
def rebuilt() -> Traced:
    return traced(sequence_level)


AROUND = Surroundings(
    device=torch.device("cpu"),
    device_name="h200",
    profile=profile_named("h200"),
    total_bytes=140 * GIB,
    usable_bytes=140 * GIB,
    base_bytes=GIB,
    pending_optimizer_bytes=0,
)
OPTIONS = Options()
COSTS = Roofline(AROUND.profile)


def problems() -> RegionProblems:
    return RegionProblems(AROUND, OPTIONS, COSTS)


def cut(update: Traced, settings: CutSettings) -> tuple[JointGraph, HeadPlan]:
    return prepare(
        copied(update.gm),
        settings,
        num_forward_outputs=update.num_forward_outputs,
        static_input_indices=update.static_input_indices,
    )


def decided(update: Traced, cap_bytes: int) -> tuple[JointGraph, HeadPlan]:
    return cut(update, CutSettings(trial=problems().head_trial(cap_bytes)))


def added_ns(update: Traced, chunks: int, cap_bytes: int) -> int | None:
    """Time the placement adds if the head is really cut so; None if nothing fits."""
    joint, head = cut(update, CutSettings(head=chunks))
    posed = pose(joint, problems())
    planned = plan_region(posed, region="", aim=Aim(cap_bytes), head=head, must_fit=False)
    solution = planned.plan.solution
    return None if solution.status == "infeasible" else solution.objective_ns


def test_plenty_of_memory_leaves_an_early_head_in_one_piece(early: Traced) -> None:
    _, head = decided(early, 100 * GIB)
    assert (head.form, head.chunks, head.logits_bytes) == ("early", 1, LOGITS)


def test_less_memory_never_means_fewer_chunks(early: Traced) -> None:
    heads = [decided(early, cap * GIB // 4)[1] for cap in (24, 16, 12, 10, 9)]
    counts = [head.chunks for head in heads]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    for head in heads:
        times = [way.added_ns for way in head.ways if way.added_ns is not None]
        chosen = next(way for way in head.ways if way.chunks == head.chunks)
        assert not times or chosen.added_ns == min(times)


def test_where_nothing_fits_chunks_are_no_more_than_the_least_peak_needs() -> None:
    """A layer 16 times as wide as the hidden states takes more than the logits of a few chunks."""

    def update(
        hidden: Tensor, up: Tensor, down: Tensor, head: Tensor, targets: Tensor, scale: Tensor
    ) -> Tensor:
        hidden = torch.tanh(hidden @ up) @ down
        return token_level(log_probs(hidden, head, targets), scale)

    with FakeTensorMode():
        hidden, up, down = (wanted(ROWS, HIDDEN), wanted(HIDDEN, WIDE), wanted(WIDE, HIDDEN))
        targets, scale = torch.empty(ROWS, dtype=torch.int64), torch.empty(ROWS)
        wide = trace_update(update, hidden, up, down, wanted(VOCABULARY, HIDDEN), targets, scale)

    def least_bytes(chunks: int) -> int:
        joint, plan = cut(wide, CutSettings(head=chunks))
        posed = pose(joint, problems())
        planned = plan_region(posed, region="", aim=Aim(None), head=plan, must_fit=False)
        return planned.plan.problem.memory_cap_bytes

    _, head = decided(wide, 1)
    assert all(way.added_ns is None for way in head.ways)
    assert 1 < head.chunks < head.ways[-1].chunks
    assert least_bytes(head.chunks) == least_bytes(head.ways[-1].chunks)
    assert least_bytes(head.chunks) < least_bytes(head.chunks // 2)


def test_what_a_way_is_said_to_cost_is_what_it_costs_when_it_is_taken(early: Traced) -> None:
    """The problems of all ways come from one cut graph: they must be those of graphs cut that way."""
    cap_bytes = 5 * GIB // 2
    _, head = decided(early, cap_bytes)
    assert [way.chunks for way in head.ways] == [1, 2, 4, 8, 16, 32]
    assert any(way.objective_ns is None for way in head.ways)
    for way in head.ways:
        taken = added_ns(early, way.chunks, cap_bytes)
        assert (taken is None) == (way.objective_ns is None)
        if taken is not None and way.objective_ns is not None:
            assert abs(taken - way.objective_ns) <= 0.02 * taken + 1000


def test_a_head_that_cannot_be_early_is_cut_where_memory_is_short(rebuilt: Traced) -> None:
    """Its logits once more cost a third of a forward: rather keep them, if they fit."""
    joint, roomy = decided(rebuilt, 9 * GIB)
    assert (roomy.form, roomy.chunks) == ("whole", 0)
    assert roomy.ways[0].head_ns == 0
    assert all(way.head_ns > 0 for way in roomy.ways[1:])
    tight_joint, tight = decided(rebuilt, 7 * GIB // 2)
    assert tight.form == "rebuild"
    assert tight.chunks > 1
    assert (
        joint.fingerprint == tight_joint.fingerprint
    )  # of the program, not of how its head is run


def test_where_all_fits_at_once_nothing_is_tried(early: Traced, rebuilt: Traced) -> None:
    for update, cap_bytes in ((early, 9 * GIB), (rebuilt, 9 * GIB)):
        tried, roomy = decided(update, cap_bytes)[1], decided(update, 100 * GIB)[1]
        assert tried.ways
        assert not roomy.ways
        assert replace(tried, ways=(), reason="") == replace(roomy, reason="")


def test_what_was_cut_to_try_a_way_is_taken_once_and_is_what_cutting_makes(early: Traced) -> None:
    built = problems()
    trial = built.head_trial(5 * GIB // 2)
    tried = next(
        (joint, head)
        for joint, head in (
            cut(early, CutSettings(trial=replace(trial, cap_bytes=cap * GIB // 8)))
            for cap in range(72, 8, -4)
        )
        if head.chunks == 2
    )
    first = pose(tried[0], built)
    again = pose(cut(early, CutSettings(head=2))[0], problems())
    assert first.problem == again.problem
    assert [n.name for n in tried[0].gm.graph.nodes] == [n.name for n in again.joint.gm.graph.nodes]
    assert trial.taken(tried[1]) is None


def test_an_earlier_decision_stands(early: Traced) -> None:
    def problem_of(joint: JointGraph) -> tuple[RecoveryGraph, PlacementProblem]:
        raise AssertionError("nothing is to be tried")

    trial = HeadTrial(problem_of, COSTS, 1.0, 100 * GIB, 0)
    _, before = decided(early, 100 * GIB)
    settings = CutSettings(trial=trial, decided_head=lambda _: replace(before, chunks=4))
    joint, head = cut(early, settings)
    assert head.chunks == 4
    products = [n for n in joint.forward if n.target is torch.ops.aten.mm.default]
    logits = [n for n in products if n.meta["val"].shape[1] == VOCABULARY]
    assert [n.meta["val"].shape[0] for n in logits] == [ROWS // 4] * 4


def test_returned_logits_are_named_with_what_to_do() -> None:
    """A public report: only the model is compiled, and the loss is taken outside."""

    def forward(hidden: Tensor, head: Tensor) -> Tensor:
        return torch.log_softmax((torch.tanh(hidden) @ head.t()).float(), -1)

    with FakeTensorMode():
        update = trace_update(forward, wanted(64, HIDDEN), wanted(VOCABULARY, HIDDEN))
    _, head = decided(update, 100 * GIB)
    assert (head.form, head.chunks) == ("whole", 0)
    assert "alive through all of backward: return log-probabilities instead" in head.reason


def test_no_head_is_no_head() -> None:
    with FakeTensorMode():
        update = trace_update(lambda x, w: torch.tanh(x @ w).sum(), wanted(64, 64), wanted(64, 64))
    assert decided(update, GIB)[1] == NO_HEAD


def test_chunks_are_neither_short_nor_small() -> None:
    assert chunk_counts(10_240, 10_240 * 2 * VOCABULARY) == (1, 2, 4, 8, 16, 32)
    assert chunk_counts(300, 300 * 2 * VOCABULARY) == (1,)
    assert chunk_counts(100_000, 100_000 * 2 * 500) == (1, 2)


@given(rows=st.integers(1, 50_000), chunks=st.integers(1, 64))
def test_chunks_cover_all_rows_and_fit_the_tiles_of_products(rows: int, chunks: int) -> None:
    bounds = static_bounds(rows, chunks)
    assert 0 < len(bounds) <= chunks
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == rows
    lengths = [stop - start for start, stop in bounds]
    assert min(lengths) > 0
    assert all(length % 128 == 0 for length in lengths[:-1] if length >= 1024)
