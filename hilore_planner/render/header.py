"""The figures of a plan: what was asked, what it reaches, and how good that is."""

from __future__ import annotations

import textwrap

from rich.text import Text

from hilore_planner.head_plan import NO_HEAD, HeadPlan
from hilore_planner.plan import CHECKED, PlacementPlan
from hilore_planner.render import words
from hilore_planner.sizes import format_bytes, format_ns

Fact = tuple[str, str, str]
"""A name, a figure and a remark."""


def header(plan: PlacementPlan, width: int) -> list[Text]:
    """The plan's figures, one a line, under a line that says what it is a plan of."""
    origin = plan.provenance
    parts = (
        plan.region,
        origin.device,
        f"torch {origin.torch}",
        f"{origin.costs} costs",
        f"graph {origin.fingerprint[:12]}",
    )
    facts = (
        *_memory_facts(plan),
        *_time_facts(plan),
        *_error_facts(plan),
        *_head_facts(plan.head),
        _solver_fact(plan),
    )
    return [Text("  ".join(parts), style="bold"), Text(), *fact_lines(facts, width)]


def fact_lines(facts: tuple[Fact, ...], width: int) -> list[Text]:
    """Names, figures and remarks in three columns; remarks wrap within theirs."""
    name_width = max(len(name) for name, _, _ in facts)
    figure_width = max(len(figure) for _, figure, _ in facts)
    start = 2 + name_width + 2 + figure_width + 2
    lines = []
    for name, figure, remark in facts:
        chunks = _wrap(remark, max(width - start, 20))
        line = Text(f"  {name:<{name_width}}  ", style="dim")
        line.append(f"{figure:<{figure_width}}  ", style="not dim")
        line.append(chunks[0], style="not dim")
        line.rstrip()
        lines.append(line)
        lines += [Text(" " * start + chunk) for chunk in chunks[1:]]
    return lines


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _memory_facts(plan: PlacementPlan) -> list[Fact]:
    problem, solution = plan.problem, plan.solution
    cap_bytes = problem.memory_cap_bytes
    facts: list[Fact] = [("cap", format_bytes(cap_bytes), "")]
    if not solution.is_placed:
        least = solution.smallest_feasible_cap_bytes
        if least is not None:
            held = f"held up by {', '.join(solution.holding)}" if solution.holding else ""
            facts.append(("smallest cap", format_bytes(least), held))
        return facts
    predicted_bytes = plan.predicted_peak_bytes
    where = words.position(problem, solution.peak_position) if problem.positions else "no position"
    of_cap = f"{words.share(predicted_bytes, cap_bytes)} of the cap, at {where}"
    if plan.provenance.options.get(CHECKED) == "no":
        of_cap += "; estimated, not checked against compiled code"
    facts.append(("predicted peak", format_bytes(predicted_bytes), of_cap))
    if plan.measured.peak_bytes is not None:
        off = plan.measured.peak_bytes / predicted_bytes - 1 if predicted_bytes else 0.0
        remark = f"{off:+.1%} of the predicted"
        facts.append(("measured peak", format_bytes(plan.measured.peak_bytes), remark))
    facts.append(("saved", format_bytes(solution.saved_bytes), "kept from forward to backward"))
    return facts


def _time_facts(plan: PlacementPlan) -> list[Fact]:
    facts: list[Fact] = []
    if plan.predicted.time_ns is not None:
        facts.append(("predicted time", format_ns(plan.predicted.time_ns), "of one update"))
    if plan.measured.time_ns is not None:
        facts.append(("measured time", format_ns(plan.measured.time_ns), "of one update"))
    if plan.solution.is_placed:
        remark = "to keep, compress and recompute"
        facts.append(("added time", format_ns(plan.solution.objective_ns), remark))
    return facts


def _error_facts(plan: PlacementPlan) -> list[Fact]:
    budget = plan.problem.gradient_error
    allowed = f"at most {budget:g} allowed" if budget else "exact"
    facts: list[Fact] = []
    if plan.solution.is_placed:
        error = plan.predicted_gradient_error
        facts.append(("gradient error", f"{error:.3g}", f"predicted, relative; {allowed}"))
    if plan.measured.gradient_error is not None:
        facts.append(("", f"{plan.measured.gradient_error:.3g}", "measured"))
    return facts


def _head_facts(head: HeadPlan) -> list[Fact]:
    """How the language-model head is run; nothing where there is none."""
    if head == NO_HEAD:
        return []
    remarks = []
    if head.logits_bytes:
        size = format_bytes(head.logits_bytes)
        remarks.append(f"{size} of logits" + (" at a time" if head.chunks > 1 else ""))
    if head.head_ns:
        remarks.append(f"{format_ns(head.head_ns)} more than a whole head")
    if head.ways:
        fitting = sum(way.objective_ns is not None for way in head.ways)
        remarks.append(f"best of {words.count(len(head.ways), 'way')}, of which {fitting} fit")
    if head.reason:
        remarks.append(head.reason)
    return [("head", str(head), "; ".join(remarks))]


def _solver_fact(plan: PlacementPlan) -> Fact:
    solution = plan.solution
    took = f"{solution.engine}, {solution.solver_seconds:.2f} s"
    if not solution.is_placed:
        return ("solver", solution.status, took)
    quality = f"bound {format_ns(solution.bound_ns)}, gap {solution.gap:.2%}"
    return ("solver", solution.status, f"{quality}, {took}")
