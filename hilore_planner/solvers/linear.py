"""A mixed-integer program as flat arrays, and its way to OR-Tools MathOpt and back.

MathOpt's own expressions take about 20 microseconds a term, which is most of a solve at our sizes;
the protocol buffer it reads takes one.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from tempfile import TemporaryFile
from typing import Literal

from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from hilore_planner.errors import SolverError

Column = int
Term = tuple[Column, float]
_STDOUT = 1
_TOLERANCE = 1e-6
"""The solver's, of what is whole."""
_LEFTOVER = b"HighsMipSolverData::"
_C_LIBRARY = ctypes.CDLL(None)

Outcome = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(slots=True)
class LinearModel:
    """Minimise a linear objective over bounded columns under two-sided rows."""

    column_names: list[str] = field(default_factory=list)
    column_lower: list[float] = field(default_factory=list)
    column_upper: list[float] = field(default_factory=list)
    column_integer: list[bool] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    entries: list[tuple[int, Column, float]] = field(default_factory=list)

    def column(
        self, name: str, *, upper: float = 1.0, integer: bool = True, cost: float = 0.0
    ) -> Column:
        """Add a column between 0 and ``upper``."""
        self.column_names.append(name)
        self.column_lower.append(0.0)
        self.column_upper.append(upper)
        self.column_integer.append(integer)
        self.cost.append(cost)
        return len(self.column_names) - 1

    def row(
        self, name: str, terms: Iterable[Term], *, lower: float = -math.inf, upper: float = math.inf
    ) -> None:
        """Add the row ``lower <= sum of terms <= upper``; terms on one column are summed."""
        row = len(self.row_names)
        summed: dict[Column, float] = {}
        for column, coefficient in terms:
            summed[column] = summed.get(column, 0.0) + coefficient
        self.row_names.append(name)
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        self.entries.extend((row, column, value) for column, value in summed.items() if value)

    def near(self, values: Sequence[float]) -> LinearModel:
        """The model with integers near ``values`` alone: binaries that are whole there stay, others move by one."""
        lower, upper = list(self.column_lower), list(self.column_upper)
        for column, value in enumerate(values):
            if self.column_integer[column]:
                is_set = upper[column] <= 1.0 and abs(value - round(value)) <= _TOLERANCE
                reach = 0.0 if is_set else 1.0
                lower[column] = max(lower[column], math.floor(value + _TOLERANCE) - reach)
                upper[column] = min(upper[column], math.ceil(value - _TOLERANCE) + reach)
        return replace(self, column_lower=lower, column_upper=upper)

    def to_proto(self, *, relaxed: bool = False) -> model_pb2.ModelProto:
        """The model as MathOpt's protocol buffer; ``relaxed`` drops integrality."""
        proto = model_pb2.ModelProto()
        columns = len(self.column_names)
        proto.variables.ids.extend(range(columns))
        proto.variables.lower_bounds.extend(self.column_lower)
        proto.variables.upper_bounds.extend(self.column_upper)
        proto.variables.integers.extend([False] * columns if relaxed else self.column_integer)
        proto.variables.names.extend(self.column_names)
        proto.linear_constraints.ids.extend(range(len(self.row_names)))
        proto.linear_constraints.lower_bounds.extend(self.row_lower)
        proto.linear_constraints.upper_bounds.extend(self.row_upper)
        proto.linear_constraints.names.extend(self.row_names)
        entries = sorted(self.entries)
        proto.linear_constraint_matrix.row_ids.extend(entry[0] for entry in entries)
        proto.linear_constraint_matrix.column_ids.extend(entry[1] for entry in entries)
        proto.linear_constraint_matrix.coefficients.extend(entry[2] for entry in entries)
        priced = [(column, cost) for column, cost in enumerate(self.cost) if cost]
        proto.objective.linear_coefficients.ids.extend(column for column, _ in priced)
        proto.objective.linear_coefficients.values.extend(cost for _, cost in priced)
        return proto


@dataclass(frozen=True, slots=True)
class LinearResult:
    """What the solver says: an outcome, the columns' values if any, and a proven lower bound."""

    outcome: Outcome
    values: tuple[float, ...]
    objective: float
    bound: float


def solve_linear(
    model: LinearModel,
    *,
    relaxed: bool = False,
    relative_gap: float = 0.0,
    deadline: float = math.inf,
    hint: dict[Column, float] | None = None,
) -> LinearResult:
    """Minimise ``model`` with HiGHS.

    Args:
        model: the model.
        relaxed: solve its LP relaxation.
        relative_gap: stop once the incumbent is proven this close.
        deadline: ``time.monotonic()`` at which to stop.
        hint: values to start from.

    Raises:
        SolverError: HiGHS gave up on it.
    """
    program = mathopt.Model.from_model_proto(model.to_proto(relaxed=relaxed))
    variables = list(program.variables())
    params = mathopt.SolveParameters(relative_gap_tolerance=None if relaxed else relative_gap)
    # Half of what equal layers leave to decide is settled at the root; to presolve that again takes longer.
    params.highs.bool_options["mip_allow_restart"] = False
    if deadline < math.inf:
        params.time_limit = timedelta(seconds=max(deadline - time.monotonic(), 0.0))
    start = {} if relaxed else {variables[column]: value for column, value in (hint or {}).items()}
    try:
        result = _run(program, params, start)
    except Exception as error:  # of many types, and some versions fail to tell their own
        raise SolverError(_refused(model, error)) from error
    return _read(result, variables)


def _run(
    program: mathopt.Model, params: mathopt.SolveParameters, start: dict[mathopt.Variable, float]
) -> mathopt.SolveResult:
    """Solve from where a hint says; from scratch if there is none, or HiGHS fails to complete it."""
    hinted = mathopt.ModelSolveParameters()
    if start:
        hinted.solution_hints.append(mathopt.SolutionHint(variable_values=start))
    with _without_leftovers():
        try:
            return mathopt.solve(
                program, mathopt.SolverType.HIGHS, params=params, model_params=hinted
            )
        except Exception:
            if not start:
                raise
        return mathopt.solve(program, mathopt.SolverType.HIGHS, params=params)


def _refused(model: LinearModel, error: Exception) -> str:
    sizes = [abs(value) for _, _, value in model.entries]
    return (
        f"HiGHS gave up on a program of {len(model.column_names)} columns and {len(model.row_names)} rows, whose "
        f"coefficients go from {min(sizes, default=0):.3g} to {max(sizes, default=0):.3g}: {error.__context__ or error}"
    )


@contextmanager
def _without_leftovers() -> Iterator[None]:
    """Drop what HiGHS prints whether output is enabled or not: lines left from its makers' debugging.

    They tell of a solution found in presolve that, its integers rounded, is solved again to keep the rows. HiGHS
    does that by itself, and each placement is replayed. What others print meanwhile goes on its way after. The C
    library buffers what it prints, so that is flushed on either side.
    """
    sys.stdout.flush()
    _C_LIBRARY.fflush(None)
    kept = os.dup(_STDOUT)
    with TemporaryFile() as caught:
        os.dup2(caught.fileno(), _STDOUT)
        try:
            yield
        finally:
            _C_LIBRARY.fflush(None)
            os.dup2(kept, _STDOUT)
            os.close(kept)
            caught.seek(0)
            with open(_STDOUT, "wb", closefd=False) as out:
                out.writelines(line for line in caught if not line.startswith(_LEFTOVER))


def _read(result: mathopt.SolveResult, variables: list[mathopt.Variable]) -> LinearResult:
    reason = result.termination.reason
    bound = result.termination.objective_bounds.dual_bound
    if reason in (
        mathopt.TerminationReason.INFEASIBLE,
        mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,
    ):
        return LinearResult("infeasible", (), math.inf, math.inf)
    if not result.has_primal_feasible_solution():
        return LinearResult("unknown", (), math.inf, bound)
    found = result.variable_values()
    outcome: Outcome = "optimal" if reason is mathopt.TerminationReason.OPTIMAL else "feasible"
    return LinearResult(
        outcome, tuple(found[v] for v in variables), result.objective_value(), bound
    )
