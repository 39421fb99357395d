"""Placements of a problem, drawn or uniform; all are valid by construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from hilore_planner.codec_names import KNOWN_CODECS
from hilore_planner.passes.cost import Roofline
from hilore_planner.passes.devices import PROFILES
from hilore_planner.passes.problem import build_problem
from hilore_planner.passes.units import RecoveryGraph
from hilore_planner.solvers.problem import PlacementProblem, Unit


def problem_of(
    graph: RecoveryGraph, *, gradient_error: float = 0.5, codecs: Sequence[str] = KNOWN_CODECS
) -> PlacementProblem:
    return build_problem(
        graph,
        Roofline(PROFILES["cpu"]),
        codecs=codecs,
        base_bytes=0,
        memory_cap_bytes=2**40,
        gradient_error=gradient_error,
    )


def actions(unit: Unit, *, is_exact: bool = False) -> list[str]:
    """What may be done for a unit, storing first."""
    return [
        *(["store"] if unit.can_store else []),
        *(["recompute"] if unit.can_recompute else []),
        *(f"compress:{form.codec}" for form in unit.codecs if not (is_exact and form.risk)),
    ]


def place(problem: PlacementProblem, choose: Callable[[Unit], str]) -> dict[str, str]:
    """An action for every unit that backward or the recomputation of another needs."""
    placement: dict[str, str] = {}
    needed: set[str] = set()
    for unit in reversed(problem.units):
        if unit.read_at or unit.name in needed:
            placement[unit.name] = choose(unit)
            if placement[unit.name] == "recompute":
                needed.update(unit.parents)
    return placement


def prefer(*wanted: str) -> Callable[[Unit], str]:
    """Choose the first of ``wanted`` that is open to a unit."""
    return lambda unit: next(
        action for action in (*wanted, *actions(unit)) if action in actions(unit)
    )


@st.composite
def placements(draw: st.DrawFn, problem: PlacementProblem, *, is_exact: bool) -> dict[str, str]:
    def choose(unit: Unit) -> str:
        return draw(st.sampled_from(actions(unit, is_exact=is_exact)), label=unit.name)

    return place(problem, choose)
