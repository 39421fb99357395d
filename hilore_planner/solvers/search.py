"""Least time under a cap, and least peak: both solve, replay, refine, and solve again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hilore_planner.solvers.candidate import Candidate, candidate
from hilore_planner.solvers.linear import Column, LinearResult, solve_linear
from hilore_planner.solvers.problem import Bytes, Nanoseconds, PositionIndex
from hilore_planner.solvers.program import (
    Choices,
    Program,
    peak_program,
    read_placement,
    time_program,
    whole,
)
from hilore_planner.solvers.refine import refine
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.repair import repair
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.verify import Replay

_log = logging.getLogger(__name__)

_ROUNDS = 200
_POSITIONS_A_ROUND = 64
_REPAIRABLE = 1.05
"""Times the cap: a peak up to this is repaired at once, a higher one is left to refinement."""
_REPAIR_STEPS = 16
_LEAST_GUARD_BYTES = 64
_GUARD_RISK = 3e-6
"""More than the solver's tolerance on a row."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop."""

    relative_gap: float
    deadline: float
    """In ``time.monotonic()``."""

    def out_of_time(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def close(self, value: int, bound: int) -> bool:
        """Whether ``value`` is proven within the gap of the least."""
        return closed(value, bound, self.relative_gap)

    def part(self, share: float, *, at_most_seconds: float = math.inf) -> Limits:
        """The same gap, and ``share`` of the time that is left, or ``at_most_seconds``."""
        now = time.monotonic()
        left = share * max(self.deadline - now, 0.0)
        return Limits(self.relative_gap, now + min(left, at_most_seconds))


@dataclass(frozen=True, slots=True)
class Found:
    """The best candidate of a search, if any, and a proven lower bound on what it minimised."""

    best: Candidate | None
    bound: int
    infeasible: bool = False
    """No placement satisfies the rows at all."""

    def excludes(self, cap_bytes: Bytes) -> bool:
        """Whether it proves, being of the least peak, that nothing fits the cap."""
        return self.infeasible or self.bound > cap_bytes


class Goal(Protocol):
    """What a search minimises."""

    @property
    def name(self) -> str:
        """For the log."""

    def program(self, choices: Choices) -> Program:
        """The program to solve."""

    def value(self, replay: Replay) -> int:
        """What is minimised, of a replay."""

    def bound(self, program: Program, result: LinearResult) -> int:
        """A lower bound on the value of every placement, from a solve without fences."""

    def limit_bytes(self, program: Program, result: LinearResult) -> Bytes:
        """The peak that the program believes its solution has at most."""

    def accepts(self, structure: Structure, found: Candidate) -> bool:
        """Whether a placement may be returned."""

    def repair(self, structure: Structure, found: Candidate) -> Candidate | None:
        """A placement that may be, near one that may not; None if there is no quick one."""


@dataclass(frozen=True, slots=True)
class LeastTime:
    """The fastest placement under a cap."""

    cap_bytes: Bytes
    name: str = "least time"

    def program(self, choices: Choices) -> Program:
        """Time, peaks under the cap."""
        return time_program(choices, self.cap_bytes)

    def value(self, replay: Replay) -> Nanoseconds:
        """Its time."""
        return replay.time_ns

    def bound(self, program: Program, result: LinearResult) -> Nanoseconds:
        """The solver's, in ns."""
        return _round_up(result.bound * program.unit_ns)

    def limit_bytes(self, program: Program, result: LinearResult) -> Bytes:
        """The cap."""
        return self.cap_bytes

    def accepts(self, structure: Structure, found: Candidate) -> bool:
        """Under the cap and in the risk budget."""
        return found.fits(structure, self.cap_bytes)

    def repair(self, structure: Structure, found: Candidate) -> Candidate | None:
        """A few steps, where few can do."""
        if found.replay.peak_bytes > _REPAIRABLE * self.cap_bytes:
            return None
        return repair(structure, found.placement, self.cap_bytes, steps=_REPAIR_STEPS)


@dataclass(frozen=True, slots=True)
class LeastPeak:
    """The placement of the smallest peak; up to ``slack_bytes`` of it are given for time."""

    slack_bytes: float
    name: str = "least peak"

    def program(self, choices: Choices) -> Program:
        """The highest peak, and a little time."""
        return peak_program(choices, self.slack_bytes)

    def value(self, replay: Replay) -> Bytes:
        """Its peak."""
        return replay.peak_bytes

    def bound(self, program: Program, result: LinearResult) -> Bytes:
        """The solver's, in bytes, less all that time can be worth."""
        return _round_up(result.bound * program.cap.unit_bytes - self.slack_bytes)

    def limit_bytes(self, program: Program, result: LinearResult) -> Bytes:
        """The value of the cap's column."""
        assert program.cap.column is not None  # this goal minimises it
        return round(result.values[program.cap.column] * program.cap.unit_bytes)

    def accepts(self, structure: Structure, found: Candidate) -> bool:
        """In the risk budget."""
        return found.in_budget(structure)

    def repair(self, structure: Structure, found: Candidate) -> Candidate | None:
        """Not tried."""
        return None


def closed(value: int, bound: int, relative_gap: float) -> bool:
    """Whether ``value`` is proven within ``relative_gap`` of the least."""
    return value - bound <= relative_gap * value


def search(
    goal: Goal,
    structure: Structure,
    refinement: Refinement,
    limits: Limits,
    best: Candidate | None = None,
    *,
    rounds: int = _ROUNDS,
) -> Found:
    """Minimise ``goal``: solve, replay, refine where the replay is higher, and solve again.

    After ``rounds`` the refinement is ready for another search to go on from there. Behind fences
    the bound is one on fenced placements only.
    """
    bound = 0
    for round_number in range(rounds):
        program = goal.program(whole(structure, refinement))
        result = solve_linear(
            program.model,
            relative_gap=limits.relative_gap,
            deadline=limits.deadline,
            hint=_hint(program, best),
        )
        if result.outcome == "infeasible":
            return Found(best, bound, infeasible=refinement.bounds())
        if refinement.bounds():
            bound = max(bound, goal.bound(program, result))
        if not result.values:
            break
        found = candidate(structure, read_placement(program.variables, result.values))
        over = over_positions(found.replay.position_bytes, goal.limit_bytes(program, result))
        _log_round(goal, round_number, program, found, len(over))
        usable = found if goal.accepts(structure, found) else None
        if usable is None and round_number == 0:
            usable = goal.repair(structure, found)
        best = better(goal, best, usable)
        if best is not None and closed(goal.value(best.replay), bound, limits.relative_gap):
            break
        exact = not over and found.in_budget(structure)
        if exact or limits.out_of_time():
            break
        _grow(structure, refinement, found, over)
    return Found(best, bound)


def better(goal: Goal, best: Candidate | None, usable: Candidate | None) -> Candidate | None:
    """The one of the lower value, where there are two."""
    known = [each for each in (best, usable) if each is not None]
    return min(known, key=lambda each: goal.value(each.replay), default=None)


def _grow(
    structure: Structure,
    refinement: Refinement,
    found: Candidate,
    over: Sequence[PositionIndex],
) -> None:
    """Refine where the replay is over; where there is nothing to refine, guard against rounding."""
    grown = [refine(structure, refinement, found.placement, found.replay, k) for k in over]
    if over and not any(grown):
        refinement.guard_bytes = max(2 * refinement.guard_bytes, _LEAST_GUARD_BYTES)
    if not found.in_budget(structure):
        refinement.guard_risk = _GUARD_RISK


def over_positions(position_bytes: Sequence[Bytes], limit_bytes: Bytes) -> list[PositionIndex]:
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


def _log_round(
    goal: Goal, round_number: int, program: Program, found: Candidate, over: int
) -> None:
    _log.info(
        "%s, round %d: %d columns, %d rows, peak %d bytes, time %d ns, %d positions to refine",
        goal.name,
        round_number,
        len(program.model.column_names),
        len(program.model.row_names),
        found.replay.peak_bytes,
        found.replay.time_ns,
        over,
    )
