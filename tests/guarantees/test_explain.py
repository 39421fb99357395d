"""What holds the memory at the peak is named, fixed parts too, with what would lower it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hilore_planner.errors import PlanFileError
from hilore_planner.explain import Explanation, explain
from hilore_planner.head_plan import HeadPlan
from hilore_planner.plan import FixedPart, PlacementPlan
from hilore_planner.plan_check import check
from hilore_planner.render.explain import explain as render
from tests.golden_text import Golden
from tests.guarantees.regions import PLENTY, capture
from tests.peak.programs import LanguageModel
from tests.plan_cases import MIB, toy_plan

VOCABULARY = 4096


def _with_parts() -> PlacementPlan:
    """The toy plan, whose backward positions have 120 MiB fixed."""
    plan = toy_plan()
    end = len(plan.problem.positions) - 1
    parts = (
        FixedPart("weights", 80 * MIB, 0, end),
        FixedPart("inputs", 2 * MIB, 0, end),
        FixedPart("outputs", 32 * MIB, 20, end, "mm (model.py:7)", (4, 1024, VOCABULARY)),
        FixedPart("backward values", 9 * MIB, 21, 25, "mul (model.py:5)", (4, 1024, 1024)),
        FixedPart("backward values", 9 * MIB, 21, 21, "mul (model.py:5)", (4, 1024, 1024)),
        FixedPart("gradients", 16 * MIB, 23, end, "mm (model.py:7)", (VOCABULARY, 1024)),
    )
    return replace(plan, fixed_parts=parts, vocabulary=VOCABULARY)


def test_parts_of_the_fixed_bytes_are_owners_and_add_up() -> None:
    plan = _with_parts()
    found = explain(plan)
    fixed = {o.what: o.alive_bytes for o in found.owners if o.state == "fixed"}
    assert fixed == {
        "weights": 80 * MIB,
        "outputs: mm (model.py:7), vocabulary-sized": 32 * MIB,
        "backward values": 18 * MIB,
        "inputs": 2 * MIB,
        "other temporaries, less what is reused": -12 * MIB,
    }
    assert sum(owner.alive_bytes for owner in found.owners) == found.peak_bytes


def test_the_explanation_reads(golden: Golden) -> None:
    plan = _with_parts()
    lines = [line.plain for line in render(plan, explain(plan), 150)]
    golden.check("explain-parts.txt", "\n".join(lines) + "\n")


def test_a_head_that_is_cut_needs_no_advice() -> None:
    plan = replace(_with_parts(), fixed_parts=())
    end = len(plan.problem.positions) - 1
    chunk = FixedPart("forward values", 200 * MIB, 0, end, "mm (model.py:7)", (4, VOCABULARY))
    for chunks, count in ((0, 1), (2, 0)):
        cut = replace(plan, fixed_parts=(chunk,), head=HeadPlan("early", chunks))
        assert len(explain(cut).advice) == count


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (FixedPart("weights", 1, 3, 2), r"fixed part 0 \(weights\) goes from position 3 to 2"),
        (FixedPart("weights", 1, 0, 10**6), "goes from position 0 to 1000000; accepted: from 0 to"),
        (FixedPart("inputs", -1, 0, 1), "size_bytes is -1; accepted: 0 or above"),
    ],
)
def test_wrong_parts_are_refused(part: FixedPart, text: str) -> None:
    with pytest.raises(PlanFileError, match=text):
        check(replace(toy_plan(), fixed_parts=(part,)), "plan")


class Logits(nn.Module):
    """A language model that returns its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = LanguageModel(VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        model = self.inner
        logits: Tensor = model.head(model.body(model.embedding(ids)))
        return logits


def _explained(model: nn.Module) -> tuple[PlacementPlan, Explanation]:
    region = capture(model, torch.randint(VOCABULARY, (2, 128)))
    plan = region.planned(PLENTY, head="off").plan
    return plan, explain(plan)


@pytest.mark.compat
@pytest.mark.usefixtures("no_kernels")
def test_returned_logits_are_alive_all_through_backward() -> None:
    """Case: logits go to the caller, who computes the loss outside of the compiled function."""
    plan, found = _explained(Logits())
    size = 2 * 128 * VOCABULARY * 4
    first_backward, end = plan.problem.first_backward, len(plan.problem.positions) - 1
    (logits,) = (part for part in plan.fixed_parts if part.what == "outputs")
    assert (logits.size_bytes, logits.last, logits.shape[-1]) == (size, end, VOCABULARY)
    assert logits.first < first_backward
    (incoming,) = (part for part in plan.fixed_parts if part.what == "incoming gradients")
    assert (incoming.size_bytes, incoming.first) == (size, first_backward)
    base = sum(p.size_bytes for p in plan.fixed_parts if p.what in ("weights", "inputs"))
    backward = plan.problem.positions[first_backward:]
    assert all(position.fixed_bytes >= base + size for position in backward)
    assert plan.predicted_peak_bytes >= base + 2 * size
    assert any("compute log-probabilities inside" in advice.remedy for advice in found.advice)


@pytest.mark.usefixtures("no_kernels")
def test_logits_inside_the_region_are_named_with_the_option_that_helps() -> None:
    _, found = _explained(LanguageModel(VOCABULARY))
    named = [owner for owner in found.owners if owner.what.endswith("vocabulary-sized")]
    assert named
    assert all(owner.alive_bytes >= 2 * 128 * VOCABULARY * 4 for owner in named)
    assert any("option head" in advice.remedy for advice in found.advice)
