"""What compiling a plan teaches about the problem's own estimate of memory.

The problem counts step by step what the unfused program would hold. The compiled code holds something else: kernels are
fused over steps, written over their inputs, or take workspace. Both run the same kernels of their own in the same
order, so a dry run of the code is matched with the program at those kernels, and every position is shifted by the
difference found there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from hilore_planner.margins import MARGIN
from hilore_planner.peak.step import StepPeak
from hilore_planner.peak.timeline import Launch, Timeline
from hilore_planner.plan import FixedPart, PlacementPlan
from hilore_planner.solvers import refigured, replay
from hilore_planner.solvers.problem import PlacementProblem, Unit
from hilore_planner.solvers.verify import Replay


@dataclass(frozen=True, slots=True)
class Correction:
    """Bytes to add to the estimate at each position.

    Attributes:
        everywhere_bytes: at every position alike.
        shift_bytes: beyond that, the difference found on the last compiled plan; empty: nothing anywhere.
        least_bytes: of the shift, because some plan was above the cap there with less. Without it two plans that
            are wrong in opposite ways would take turns.
        written: units that were written out where they are made again; the estimate had them in registers.
    """

    everywhere_bytes: int = 0
    shift_bytes: tuple[int, ...] = ()
    least_bytes: tuple[int | None, ...] = ()
    written: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Short text that tells one correction from another."""
        added = (self.everywhere_bytes, self.shift_bytes, sorted(self.written))
        return hashlib.sha256(repr(added).encode()).hexdigest()[:16]

    def applied(self, problem: PlacementProblem) -> PlacementProblem:
        """The problem with every position shifted, and units counted that are written out."""
        positions = tuple(
            replace(position, fixed_bytes=max(0, position.fixed_bytes + shift))
            for position, shift in zip(
                problem.positions, self._shifts(len(problem.positions)), strict=True
            )
        )
        units = tuple(
            replace(unit, rebuilt_bytes=unit.kept_bytes) if unit.name in self.written else unit
            for unit in problem.units
        )
        return replace(problem, units=units, positions=positions)

    def parts(self, problem: PlacementProblem) -> tuple[FixedPart, ...]:
        """What is left free at every position, as one of the parts that a plan's fixed bytes are made of."""
        end = len(problem.positions) - 1
        is_margin = self.everywhere_bytes > 0 and end >= 0
        return (FixedPart(MARGIN, self.everywhere_bytes, 0, end),) if is_margin else ()

    def _shifts(self, count: int) -> tuple[int, ...]:
        return tuple(self.everywhere_bytes + shift for shift in self.shift_bytes or (0,) * count)

    def eased(self, size_bytes: int) -> Correction:
        """Less by so much at every position, for once: to try a placement that does not quite fit."""
        return replace(self, everywhere_bytes=self.everywhere_bytes - size_bytes)

    def after(
        self,
        plan: PlacementPlan,
        peak: StepPeak,
        *,
        beyond_bytes: int = 0,
        blames_units: bool = False,
    ) -> Correction:
        """The correction that one more compiled plan leads to.

        Args:
            plan: of the problem with this correction applied.
            peak: of its compiled code, run dry.
            beyond_bytes: to count beyond what the dry run does.
            blames_units: what is missed where units are made again in registers is laid to them, as far as they are as
                large: a plan that keeps them is then taken to need less. Else all plans are taken to miss as much.
        """
        found = replay(plan.problem, plan.solution.placement)
        blamed = _in_registers(plan, found) if blames_units else {}
        outside_bytes = peak.base_bytes - peak.forward.start_bytes + beyond_bytes
        count, written = len(found.position_bytes), set(self.written)
        shifts, leasts = [], []
        for position, size in enumerate(held_bytes(plan, peak)):
            missed_bytes = outside_bytes + size - found.position_bytes[position]
            for unit in blamed.get(position, ()):
                if unit.kept_bytes <= missed_bytes:
                    written.add(unit.name)
                    missed_bytes -= unit.kept_bytes
            shift = self._shifts(count)[position] + missed_bytes
            least = self.least_bytes[position] if self.least_bytes else None
            if outside_bytes + size > plan.problem.memory_cap_bytes:
                least = shift if least is None else max(least, shift)
            leasts.append(least)
            shifts.append(shift if least is None else max(shift, least))
        return Correction(
            shift_bytes=tuple(shifts), least_bytes=tuple(leasts), written=frozenset(written)
        )


def _in_registers(plan: PlacementPlan, found: Replay) -> dict[int, list[Unit]]:
    """Units made again that the estimate has in registers, largest first, by the position that reads them."""
    units: dict[int, list[Unit]] = {}
    for unit in sorted(plan.problem.units, key=lambda unit: -unit.kept_bytes):
        action = plan.solution.placement.get(unit.name, "store")
        if action != "store" and unit.kept_bytes and not unit.rebuilt_bytes:
            units.setdefault(found.demand[unit.name], []).append(unit)
    return units


NO_CORRECTION = Correction()


@dataclass(frozen=True, slots=True)
class Aim:
    """What one round of planning a region is asked for.

    Attributes:
        cap_bytes: to stay under; None: the least peak there is.
        is_strict: every step keeps its place in the compiled code, not only where memory is short. That is closer to
            the estimate, and slower.
        correction: of the estimate.
    """

    cap_bytes: int | None
    is_strict: bool = False
    correction: Correction = NO_CORRECTION

    @property
    def key(self) -> str:
        """Short text that tells one aim from another."""
        cap = "least" if self.cap_bytes is None else str(self.cap_bytes)
        return f"{cap}-{'strict' if self.is_strict else 'loose'}-{self.correction.key}"


def settled(
    plan: PlacementPlan, peak: StepPeak, cap_bytes: int, beyond_bytes: int
) -> PlacementPlan:
    """A plan made for another cap, as a plan for this one, which its compiled code stays under.

    Where the estimate is above the cap, its positions become what the dry run found. Nothing is known of better plans.
    """
    problem = replace(plan.problem, memory_cap_bytes=cap_bytes)
    if plan.solution.peak_bytes > cap_bytes:
        found = NO_CORRECTION.after(plan, peak, beyond_bytes=beyond_bytes)
        problem = found.applied(problem)
    figures = replay(problem, plan.solution.placement)
    solution = replace(
        plan.solution,
        status="feasible",
        bound_ns=0,
        gap=float(plan.solution.objective_ns > 0),
    )
    options = plan.provenance.options | {"memory_cap": str(cap_bytes)}
    return replace(
        plan,
        problem=problem,
        solution=refigured(solution, figures),
        provenance=replace(plan.provenance, options=options),
    )


def held_bytes(plan: PlacementPlan, peak: StepPeak) -> tuple[int, ...]:
    """What the compiled code holds at each position of a plan's problem, by its dry run.

    A position whose work was fused into that of others gets the value of the one before it.
    """
    split = plan.problem.first_backward
    forward = _matched(plan, peak.forward, 0, split)
    backward = _matched(plan, peak.backward, split, len(plan.problem.positions))
    return (*forward, *backward)


def _matched(plan: PlacementPlan, timeline: Timeline, first: int, end: int) -> list[int]:
    """The most held at each position from ``first`` to before ``end``."""
    if first == end:
        return []
    found: dict[int, int] = {}
    current = first
    for launch, step in _placed(plan, timeline.launches, first, end):
        current = current if step is None else step.position
        found[current] = max(found.get(current, 0), launch.allocated_bytes)
        current = current if step is None else min(step.then, end - 1)
    found[end - 1] = max(found.get(end - 1, 0), timeline.last_bytes)
    levels, level = [], found[min(found)]
    for position in range(first, end):
        level = found.get(position, level)
        levels.append(level)
    return levels


@dataclass(frozen=True, slots=True)
class _Step:
    """An op of the program that may be a kernel of its own, and the position of what follows it."""

    name: str
    position: int
    then: int


def _placed(
    plan: PlacementPlan, launches: Sequence[Launch], first: int, end: int
) -> Iterator[tuple[Launch, _Step | None]]:
    """Launches, those that are found in the program with its step."""
    named = [index for index, launch in enumerate(launches) if launch.name]
    made = [_family(launches[index].name) for index in named]
    planned = [step for step in _program(plan, first, end) if step.name in set(made)]
    matcher = SequenceMatcher(None, made, [step.name for step in planned], autojunk=False)
    steps = {
        named[block.a + offset]: planned[block.b + offset]
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }
    for index, launch in enumerate(launches):
        yield launch, steps.get(index)


def _program(plan: PlacementPlan, first: int, end: int) -> Iterator[_Step]:
    """The ops of the steps, and before each those that are run again for it."""
    demand = replay(plan.problem, plan.solution.placement).demand
    rebuilt: dict[int, list[str]] = {}
    for name, action in plan.solution.placement.items():
        if action == "recompute":
            rebuilt.setdefault(demand[name], []).append(plan.sources[name].op)
    for position in range(first, end):
        for op in rebuilt.get(position, ()):
            yield _Step(_family(op), position, position)
        op = plan.problem.positions[position].label.partition(" (")[0]
        yield _Step(_family(op), position, position + 1)


def _family(op: str) -> str:
    """Inductor turns one form of matrix product into another."""
    return "mm" if op.endswith("mm") else op
