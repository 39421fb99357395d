from __future__ import annotations

from dataclasses import replace

import pytest

from hilore_planner.advice import Advice
from hilore_planner.errors import InfeasibleError, PlanFileError
from hilore_planner.explain import explain
from hilore_planner.head_plan import HeadPlan, HeadWay
from hilore_planner.plan import Figures
from hilore_planner.plan_check import check
from hilore_planner.render import records, words
from hilore_planner.render.diff import diff as render_diff
from hilore_planner.render.explain import explain as render_explanation
from hilore_planner.render.fold import fold, layer_ranges
from hilore_planner.render.header import header
from hilore_planner.render.show import show
from hilore_planner.render.table import Column, Line, table
from hilore_planner.solvers import replay
from tests.golden_text import Golden
from tests.plan_cases import MIB, toy_plan


@pytest.mark.parametrize(
    ("layers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([9, 0, 1, 5, 7, 8], "0-1, 5, 7-9")],
)
def test_layer_ranges(layers: list[int], text: str) -> None:
    assert layer_ranges(layers) == text


def test_rows_of_the_same_layers_share_a_heading() -> None:
    rows = [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("c", 1), ("d", None), ("a", 0)]
    sections = fold(rows)
    assert [section.heading for section in sections] == [
        "layers 0-1 (x2)",
        "layer 1",
        "outside layers",
    ]
    assert [entry.row for entry in sections[0].rows] == ["a", "b"]
    assert [entry.count for entry in sections[0].rows] == [3, 2]


def test_columns_give_way_in_order_and_cells_are_cut_last() -> None:
    columns = (Column("one"), Column("two", right=True, give_way=1), Column("three", give_way=2))
    lines = [Line(("a", "22", "ccccc")), Line(("section",)), Line(("aaa", "2", "c"))]
    assert [text.plain for text in table(columns, lines, 40)] == [
        "  one  two  three",
        "  a     22  ccccc",
        "section",
        "  aaa    2  c",
    ]
    assert table(columns, lines, 16)[0].plain == "  one  two"
    assert table(columns, lines, 9)[0].plain == "  one"
    assert table(columns, lines, 4)[0].plain == "  o…"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int, golden: Golden) -> None:
    plan = toy_plan(layers=12, actions={"layers.9.norm": "store"})
    lines = [line.plain for line in show(plan, width)]
    assert all(len(line) <= max(width, 70) for line in lines)
    golden.check(f"show-{width}.txt", "\n".join(lines) + "\n")


def test_measured_figures_stand_next_to_the_predicted() -> None:
    plan = replace(
        toy_plan(),
        predicted=Figures(peak_bytes=500 * MIB, time_ns=40_000_000, gradient_error=0.01),
        measured=Figures(peak_bytes=505 * MIB, time_ns=41_000_000, gradient_error=0.011),
    )
    text = "\n".join(line.plain for line in header(plan, 100))
    assert "predicted peak  500.0 MiB  48.8% of the cap" in text
    assert "measured peak   505.0 MiB  +1.0% of the predicted" in text
    assert "measured time   41.0 ms" in text
    assert "0.01       predicted, relative; at most 0.02 allowed" in text
    assert "0.011      measured" in text
    assert text == plan.summary()


def test_a_head_is_shown_with_what_it_was_chosen_from() -> None:
    ways = (HeadWay("early", 1, 4 * MIB, 0, None), HeadWay("early", 2, 2 * MIB, 1_500_000, 7))
    head = HeadPlan("early", 2, 2 * MIB, 1_500_000, ways=ways)
    plan = replace(toy_plan(), head=head)
    text = " ".join(plan.summary().split())
    assert (
        "head early, 2 chunks 2.0 MiB of logits at a time; 1.5 ms more than a whole head; "
        "best of 2 ways, of which 1 fit solver"
    ) in text
    assert not [line for line in toy_plan().summary().splitlines() if "head " in line]
    whole = replace(plan, head=HeadPlan(logits_bytes=MIB, reason="its logits are small"))
    assert "1.0 MiB of logits; its logits are small" in whole.summary()


def test_units_not_at_hand_are_counted_but_not_listed() -> None:
    plan = toy_plan()
    placement = dict(plan.solution.placement)
    # With every gate_proj stored nothing rebuilds from norm, q_proj or sdpa; backward reads them.
    unread = [replace(unit, read_at=()) for unit in plan.problem.units if unit.kind == "norm"]
    units = {unit.name: unit for unit in unread}
    problem = replace(
        plan.problem, units=tuple(units.get(unit.name, unit) for unit in plan.problem.units)
    )
    for unit in unread:
        del placement[unit.name]
    found = replay(problem, placement)
    solution = replace(
        plan.solution, placement=placement, peak_bytes=found.peak_bytes, saved_bytes=0
    )
    lines = [line.plain for line in show(replace(plan, problem=problem, solution=solution), 100)]
    assert not any(line.split()[-2:-1] == ["norm"] for line in lines)
    assert any(line.split()[:3] == ["not", "needed", "4"] for line in lines)


def test_small_units_stored_in_any_case_are_summed() -> None:
    plan = toy_plan()
    name = "layers.1.attn.sdpa"
    units = tuple(
        replace(unit, kept_bytes=1024) if unit.name == name else unit for unit in plan.problem.units
    )
    small = replace(plan, problem=replace(plan.problem, units=units))
    text = "\n".join(line.plain for line in show(small, 100))
    assert "layers 0, 2-3 (x3)\n  store*" in text
    assert "  1 unit under 64.0 KiB stored in any case, 1.0 KiB together; --all lists" in text
    everything = "\n".join(line.plain for line in show(small, 100, everything=True))
    assert "layer 1\n  store*          1.0 KiB" in everything
    assert "--all" not in everything


def test_a_plan_that_nothing_fits_says_so_everywhere() -> None:
    plan = toy_plan()
    solution = replace(
        plan.solution,
        status="infeasible",
        placement={},
        smallest_feasible_cap_bytes=300 * MIB,
        holding=("lm_head",),
    )
    infeasible = replace(plan, solution=solution)
    shown = [line.plain for line in show(infeasible, 100)]
    assert "  smallest cap    300.0 MiB   held up by lm_head" in shown
    assert not any("unit" in line for line in shown)
    compared = [line.plain.split() for line in render_diff(plan.diff(infeasible), 100)]
    assert ["status", "feasible", "infeasible"] in compared
    with pytest.raises(InfeasibleError, match=r"300.0 MiB\), held up most by lm_head"):
        explain(infeasible)


def test_the_owners_of_the_peak_add_up_to_it() -> None:
    plan = toy_plan()
    explanation = explain(plan)
    assert explanation.peak_bytes == plan.solution.peak_bytes
    assert sum(owner.alive_bytes for owner in explanation.owners) == explanation.peak_bytes
    states = {owner.state for owner in explanation.owners}
    assert states == {"fixed", "stored", "compressed", "rebuilt"}


def test_what_lowers_the_peak_does_so() -> None:
    plan = toy_plan()
    levers = explain(plan).levers
    assert levers
    for lever in levers:
        role = lever.what.split()[0]
        changed = [
            name
            for name, action in plan.solution.placement.items()
            if plan.sources[name].role == role and action == lever.before
        ]
        assert len(changed) == lever.count
        placement = plan.solution.placement | dict.fromkeys(changed, lever.after)
        found = replay(plan.problem, placement)
        assert found.peak_bytes - plan.solution.peak_bytes == lever.peak_change_bytes < 0
        assert found.time_ns - plan.solution.objective_ns == lever.time_change_ns
        assert found.risk <= plan.problem.gradient_error**2


def test_where_nothing_lowers_the_peak_the_fixed_part_is_named() -> None:
    plan = toy_plan(layers=1, actions={"layers.0.attn.q_proj": "recompute"})
    everything = {unit.name: replace(unit, can_recompute=False) for unit in plan.problem.units}
    stored = dict.fromkeys(everything, "store")
    problem = replace(
        plan.problem,
        units=tuple(replace(unit, codecs=()) for unit in everything.values()),
    )
    fixed = replace(plan, problem=problem, solution=replace(plan.solution, placement=stored))
    lines = [line.plain for line in render_explanation(fixed, explain(fixed), 100)]
    assert lines[-1] == "  nothing that is kept; 120.0 MiB are fixed whatever is decided"


def test_values_are_written_as_torch_writes_them() -> None:
    assert words.value("torch.bfloat16", (4, 2560, 1536)) == "bf16[4, 2560, 1536]"
    assert words.value("float32", ()) == "f32[]"
    assert words.value("torch.complex64", (2,)) == "complex64[2]"
    assert words.value("", ()) == "-"
    assert words.op("_scaled_dot_product_flash_attention_for_cpu[1]") == "sdpa_flash[1]"
    assert words.op("_scaled_dot_product_cudnn_attention") == "sdpa_cudnn"
    assert words.op("mm") == "mm"
    assert words.count(1, "unit") == "1 unit"
    assert words.share(1, 0) == "0.0%"


def test_advice_of_less_than_nothing_is_refused() -> None:
    advice = Advice("a mask", "", 1, -1, None, "none")
    with pytest.raises(PlanFileError, match="advice 'a mask': a number in it is below 0"):
        check(replace(toy_plan(), advice=(advice,)), "plan")


def test_advice_is_shown_and_recorded() -> None:
    slow = Advice(
        "attention with an explicit mask", "model.py:7", 2, 3 * MIB, 5_000_000, "pass none"
    )
    plan = replace(toy_plan(), advice=(slow,))
    line = "  attention with an explicit mask: 2 places from model.py:7 (at least 5.0 ms, 3.0 MiB): pass none"
    for lines in (show(plan, 200), render_explanation(plan, explain(plan), 200)):
        text = [line.plain for line in lines]
        assert text[-3:] == ["What slows the update whatever is planned", "", line]
    narrow = [line.plain for line in show(plan, 50)]
    assert all(
        len(line) <= 50
        for line in narrow[narrow.index("What slows the update whatever is planned") :]
    )
    row = {
        "what": slow.what,
        "source": "model.py:7",
        "count": 2,
        "bytes": 3 * MIB,
        "ns": 5_000_000,
        "remedy": "pass none",
    }
    assert records.plan_record(plan)["advice"] == [row]
    assert row in records.explanation_record(plan, explain(plan))["advice"]
