"""Assembling the integer program, and reading a placement from its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hilore_planner.solvers import constraints
from hilore_planner.solvers.linear import Column, LinearModel
from hilore_planner.solvers.objective import minimise_time
from hilore_planner.solvers.peaks import Cap, add_peaks
from hilore_planner.solvers.problem import Bytes, Nanoseconds
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, Variables, add_variables

_MODERATE_BITS = 17
"""Totals are scaled to this many bits: the solver's absolute tolerances are 10⁻¹¹ of them."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program with its columns.

    Attributes:
        model: rows and columns.
        variables: the columns by meaning.
        cap: the right-hand side of its peak rows.
        unit_ns: what 1 of the objective is, where that is time.
    """

    model: LinearModel
    variables: Variables
    cap: Cap
    unit_ns: float


@dataclass(frozen=True, slots=True)
class Choices:
    """A program without its peaks and its objective: columns, and the rows that join them."""

    model: LinearModel
    variables: Variables


def time_program(choices: Choices, cap_bytes: Bytes) -> Program:
    """Least time of ``choices``, to which it is added, under ``cap_bytes``."""
    model, variables = choices.model, choices.variables
    structure = variables.structure
    unit_ns = _moderate(_everything_ns(structure))
    cap = Cap(cap_bytes, _moderate(_everything_bytes(structure)))
    constraints.add_risk(model, variables)
    add_peaks(model, variables, cap)
    minimise_time(model, variables, unit_ns)
    return Program(model, variables, cap, unit_ns)


def peak_program(choices: Choices, slack_bytes: float) -> Program:
    """Least peak of ``choices``, to which it is added.

    In units of ``cap.unit_bytes``, with all time together worth ``slack_bytes``. The little that time
    is worth keeps the program from rebuilding what it need not, which at positions it has no row for
    yet would cost a lot.
    """
    model, variables = choices.model, choices.variables
    structure = variables.structure
    everything_ns = _everything_ns(structure)
    unit_bytes = _moderate(_everything_bytes(structure))
    upper = _everything_bytes(structure) / unit_bytes
    column = model.column("cap[]", upper=upper, integer=False, cost=1.0)
    cap = Cap(0, unit_bytes, column)
    constraints.add_risk(model, variables)
    add_peaks(model, variables, cap)
    minimise_time(model, variables, unit_bytes * max(everything_ns, 1) / slack_bytes)
    return Program(model, variables, cap, _moderate(everything_ns))


def whole(structure: Structure, refinement: Refinement) -> Choices:
    """The choices of every unit."""
    model = LinearModel()
    variables = add_variables(model, structure, refinement)
    constraints.add_at_hand(model, variables)
    constraints.add_parents(model, variables)
    constraints.add_inexactness(model, variables)
    constraints.add_demand(model, variables)
    constraints.add_tails(model, variables)
    constraints.add_heirs(model, variables)
    return Choices(model, variables)


def _everything_bytes(structure: Structure) -> Bytes:
    problem = structure.problem
    fixed = max((position.fixed_bytes for position in problem.positions), default=0)
    units = sum(
        unit.kept_bytes + unit.rebuilt_bytes + sum(form.kept_bytes for form in unit.codecs)
        for unit in problem.units
    )
    return fixed + units


def _everything_ns(structure: Structure) -> Nanoseconds:
    return sum(
        unit.keep_ns
        + unit.recompute_ns
        + sum(form.encode_ns + form.decode_ns for form in unit.codecs)
        for unit in structure.problem.units
    )


def _moderate(total: int) -> float:
    """The power of two that brings ``total`` to ``_MODERATE`` or below."""
    return 2.0 ** max(total.bit_length() - _MODERATE_BITS, 0)


def read_placement(variables: Variables, values: Sequence[float]) -> dict[str, str]:
    """The placement that the columns' values choose, without what nothing then needs."""
    structure = variables.structure
    placement: dict[str, str] = {}
    needed = [bool(unit.read_at) for unit in structure.problem.units]
    for u in reversed(range(len(needed))):
        if not needed[u]:
            continue
        chosen = _chosen(variables.actions[u], values)
        placement[structure.problem.units[u].name] = chosen
        if chosen == RECOMPUTE:
            for p in structure.parents[u]:
                needed[p] = True
    return {
        unit.name: placement[unit.name]
        for unit in structure.problem.units
        if unit.name in placement
    }


def _chosen(actions: dict[str, Column], values: Sequence[float]) -> str:
    return max(actions, key=lambda action: values[actions[action]])
