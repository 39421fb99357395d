"""Least time under a cap, and least peak: both solve, replay, refine, and solve again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hilore_planner.solvers.linear import Column, LinearModel, solve_linear
from hilore_planner.solvers.problem import Bytes, Nanoseconds, PositionIndex
from hilore_planner.solvers.program import Program, peak_program, read_placement, time_program
from hilore_planner.solvers.refine import refine
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.verify import Replay, replay

_log = logging.getLogger(__name__)

_ROUNDS = 200
_POSITIONS_A_ROUND = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement with its replay."""

    placement: dict[str, str]
    replay: Replay


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop."""

    relative_gap: float
    deadline: float
    """In ``time.monotonic()``."""

    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline


@dataclass(frozen=True, slots=True)
class Found:
    """The best candidate of a search, if any, and a proven lower bound on what it minimised."""

    candidate: Candidate | None
    bound: int
    infeasible: bool = False
    """No placement satisfies the rows at all."""


def candidate(structure: Structure, placement: Mapping[str, str]) -> Candidate:
    """Replay ``placement``."""
    return Candidate(dict(placement), replay(structure.problem, placement))


def start_refinement(structure: Structure) -> Refinement:
    """Peak rows at both ends of backward and where fixed bytes are highest."""
    positions = structure.problem.positions
    refinement = Refinement()
    if positions:
        fixed = [position.fixed_bytes for position in positions]
        refinement.add_peak(fixed.index(max(fixed)))
        refinement.add_peak(min(structure.problem.first_backward, len(positions) - 1))
    return refinement


def least_time(
    structure: Structure,
    refinement: Refinement,
    cap_bytes: Bytes,
    limits: Limits,
    best: Candidate | None = None,
) -> Found:
    """The fastest placement whose replayed peak is within ``cap_bytes``."""
    bound = 0
    for round_number in range(_ROUNDS):
        program = time_program(structure, refinement, cap_bytes)
        result = solve_linear(
            program.model,
            relative_gap=limits.relative_gap,
            deadline=limits.deadline,
            hint=_hint(program, best),
        )
        if result.outcome == "infeasible":
            return Found(None, 0, infeasible=True)
        bound = max(bound, _round_up(result.bound * program.unit_ns))
        if not result.values:
            break
        found = candidate(structure, read_placement(program.variables, result.values))
        over = _worst(found.replay.position_bytes, cap_bytes)
        _log_round("least time", round_number, program, found, len(over))
        if not over and (best is None or found.replay.time_ns < best.replay.time_ns):
            best = found
        if best is not None and closed(best.replay.time_ns, bound, limits.relative_gap):
            break
        if limits.out_of_time() or not _grow(structure, refinement, found, over):
            break
    return Found(best, bound)


def least_peak(structure: Structure, refinement: Refinement, limits: Limits) -> Found:
    """The placement of the smallest replayed peak, whatever its time."""
    best: Candidate | None = None
    bound = 0
    for round_number in range(_ROUNDS):
        program = peak_program(structure, refinement)
        result = solve_linear(
            program.model,
            relative_gap=limits.relative_gap,
            deadline=limits.deadline,
            hint=_hint(program, best),
        )
        if result.outcome == "infeasible":
            return Found(None, 0, infeasible=True)
        bound = max(bound, _round_up(result.bound * program.cap.unit_bytes))
        if not result.values:
            break
        found = candidate(structure, read_placement(program.variables, result.values))
        if best is None or found.replay.peak_bytes < best.replay.peak_bytes:
            best = found
        over = _worst(found.replay.position_bytes, bound)
        _log_round("least peak", round_number, program, found, len(over))
        if closed(best.replay.peak_bytes, bound, limits.relative_gap):
            break
        if limits.out_of_time() or not _grow(structure, refinement, found, over):
            break
    return Found(best, bound)


def closed(value: int, bound: int, relative_gap: float) -> bool:
    """Whether ``value`` is proven within ``relative_gap`` of the least."""
    return value - bound <= relative_gap * value


def _grow(
    structure: Structure,
    refinement: Refinement,
    found: Candidate,
    over: Sequence[PositionIndex],
) -> bool:
    grown = [refine(structure, refinement, found.placement, found.replay, k) for k in over]
    return any(grown)


def _worst(position_bytes: Sequence[Bytes], limit_bytes: Bytes) -> list[PositionIndex]:
    """The highest local maxima above the limit."""
    last = len(position_bytes) - 1
    over = [
        k
        for k, size in enumerate(position_bytes)
        if size > limit_bytes
        and (k == 0 or position_bytes[k - 1] < size)
        and (k == last or position_bytes[k + 1] <= size)
    ]
    return sorted(over, key=lambda k: -position_bytes[k])[:_POSITIONS_A_ROUND]


def _round_up(bound: float) -> int:
    """An integer lower bound from a solver's, allowing for its tolerance."""
    if not math.isfinite(bound):
        return 0
    return max(math.ceil(bound - 1e-6 * max(1.0, abs(bound) * 1e-3)), 0)


def _hint(program: Program, best: Candidate | None) -> dict[Column, float] | None:
    if best is None:
        return None
    names = [unit.name for unit in program.variables.structure.problem.units]
    return {
        column: float(best.placement.get(name) == action)
        for name, actions in zip(names, program.variables.actions, strict=True)
        for action, column in actions.items()
    }


def _log_round(what: str, round_number: int, program: Program, found: Candidate, over: int) -> None:
    model: LinearModel = program.model
    time_ns: Nanoseconds = found.replay.time_ns
    _log.info(
        "%s, round %d: %d columns, %d rows, peak %d bytes, time %d ns, %d positions to refine",
        what,
        round_number,
        len(model.column_names),
        len(model.row_names),
        found.replay.peak_bytes,
        time_ns,
        over,
    )
