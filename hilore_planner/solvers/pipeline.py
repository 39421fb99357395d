"""The order in which the fastest placement under a cap, and the least peak, are searched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hilore_planner.solvers.candidate import Candidate
from hilore_planner.solvers.folded_search import search_folded
from hilore_planner.solvers.linear import LinearResult, solve_linear
from hilore_planner.solvers.local import search_local, soon_local
from hilore_planner.solvers.problem import Bytes
from hilore_planner.solvers.program import Program, read_placement, whole
from hilore_planner.solvers.refine import add_fences, start_refinement
from hilore_planner.solvers.refinement import Refinement
from hilore_planner.solvers.repair import into_budget, repair
from hilore_planner.solvers.search import (
    Found,
    LeastPeak,
    LeastTime,
    Limits,
    better,
    search,
)
from hilore_planner.solvers.structure import Structure, analyse
from hilore_planner.solvers.variables import STORE

Engine = Literal["milp", "lp-repair"]

_FENCES = (0, 1, 2)
"""How many layers ahead placements may rebuild that are searched before all others."""

_PEAK_ROUNDS = 2
"""Of the folded program with peak rows alone."""

_LARGE = 1000
"""Units from which on the program is large."""

SHARE = 0.3
"""Of the time that is left, for one search of several."""

_LOSSLESS_SHARE = 0.5
"""Likewise for placements without lossy copies."""

_FLOOR_SHARE = 0.1
"""Likewise for each lower cap on the way to the floor, and for the floor without fences, where one behind is known."""

_LOWERED = (0.1, 0.03, 0.01)
"""Shares by which caps are lowered on the way to the floor, each for as long as something fits."""

_LOWERED_SECONDS = 1.0
"""For each of them: what fits is mostly found at once."""

_ANY_GAP = 0.1
"""On the way there: what fits matters, not how fast it is."""


@dataclass(frozen=True, slots=True)
class Search:
    """One goal's search: its refinement grows from round to round."""

    structure: Structure
    refinement: Refinement
    engine: Engine

    def least_time(self, cap_bytes: Bytes, limits: Limits, start: Candidate | None) -> Found:
        """The fastest placement under a cap; with none, whether that is proven."""
        goal = LeastTime(cap_bytes)
        if self.engine == "lp-repair":
            found = self._relaxed(goal, start)
            return replace(found, best=found.best or self._fenced(goal, limits))
        first = self._first(goal, limits, start)
        if first.infeasible or (
            first.best and limits.close(goal.value(first.best.replay), first.bound)
        ):
            return first
        if limits.out_of_time() and (first.best or self._is_large()):
            return first
        best = self._lossless(goal, limits, first.best)
        best = best or self._fenced(goal, limits) or self._relaxed(goal, None).best
        if best is None or limits.close(goal.value(best.replay), first.bound):
            return replace(first, best=best)
        found = search(goal, self.structure, self.refinement, limits, best)
        return replace(found, bound=max(first.bound, found.bound))

    def least_peak(self, limits: Limits) -> Found:
        """The smallest peak: fenced placements first, further and further ahead, then any."""
        positions = self.structure.problem.positions
        fixed_bytes = max((position.fixed_bytes for position in positions), default=0)
        # A tenth of the gap; below one byte, and so exact, where that is less.
        goal = LeastPeak(max(0.1 * limits.relative_gap * fixed_bytes, 0.4))
        folded = search_folded(
            goal, self.structure, self.refinement, limits.part(SHARE), None, refines=False
        )
        if folded.infeasible:
            return folded
        found = Found(better(goal, folded.best, self._least_known(goal, limits)), folded.bound)
        if not self._is_large():
            found = self._lowered(found, limits)
        best, bound = found.best, found.bound
        is_fenced = False
        for layers in _FENCES:
            if best is not None and limits.close(goal.value(best.replay), bound):
                return Found(best, bound)
            if self._is_large():
                # What rebuilds nothing ahead of its own layer is alike in all layers.
                found = search_local(
                    goal, self.structure, start_refinement(self.structure), limits, best
                )
                return replace(found, bound=max(found.bound, bound))
            fenced = self.structure.fenced(layers)
            if fenced.fences:
                add_fences(fenced, self.refinement)
                best = search(goal, fenced, self.refinement, limits.part(SHARE), best).best
                is_fenced = True
        rest = limits.part(_FLOOR_SHARE) if is_fenced and best is not None else limits
        found = search(goal, self.structure, self.refinement, rest, best)
        return replace(found, bound=max(found.bound, bound))

    def _lowered(self, known: Found, limits: Limits) -> Found:
        """What fits lower and lower caps: of placements that are fast, few rebuild far ahead, and so all fit soon."""
        best, bound = known.best, known.bound
        is_local = True
        for share in _LOWERED:
            while best is not None and not limits.close(best.replay.peak_bytes, bound):
                peak_bytes = best.replay.peak_bytes
                cap_bytes = max(min(round(peak_bytes * (1.0 - share)), peak_bytes - 1), bound)
                goal, rows = LeastTime(cap_bytes), start_refinement(self.structure, best)
                part = limits.part(_FLOOR_SHARE, at_most_seconds=_LOWERED_SECONDS)
                part = replace(part, relative_gap=_ANY_GAP)
                soon = soon_local(goal, self.structure, rows, part) if is_local else None
                found = Found(soon, 0)
                if soon is None:
                    found = search_folded(goal, self.structure, rows, part, None, refines=True)
                    is_local &= found.best is None  # no lower cap has a local one either
                if found.infeasible:
                    bound = max(bound, cap_bytes + 1)
                if found.best is None:
                    break
                best = found.best
        return Found(best, bound)

    def _least_known(self, goal: LeastPeak, limits: Limits) -> Candidate | None:
        """The smaller peak of storing everything and, where copies may be lossy, of the best without.

        That has all the time: so no peak is above what is found where none may be.
        """
        units = self.structure.problem.units
        stored = into_budget(self.structure, {unit.name: STORE for unit in units if unit.can_store})
        if not any(self.structure.tainted):
            return stored
        best = self._without_lossy().least_peak(limits).best
        return better(goal, stored, best)

    def _without_lossy(self) -> Search:
        structure = analyse(replace(self.structure.problem, gradient_error=0.0))
        return Search(structure, start_refinement(structure), self.engine)

    def _is_large(self) -> bool:
        """Whether the program is better refined folded than whole."""
        return len(self.structure.parents) >= _LARGE

    def either(self, cap_bytes: Bytes, limits: Limits) -> Found:
        """A placement under a cap, or the proof that there is none, if time allows."""
        return search(LeastTime(cap_bytes), self.structure, self.refinement, limits)

    def _first(self, goal: LeastTime, limits: Limits, start: Candidate | None) -> Found:
        """One round, unless the folded program is enough.

        With lossy forms only as far as the folded program's bound is good for: trading equal
        layers' copies against a budget, the solver finds the best placements soon and proves them
        late; the folded program is quick to prove much the same.
        """
        folded = self._folded(goal, limits, start)
        start, bound = folded.best, folded.bound
        if folded.infeasible or (start and limits.close(goal.value(start.replay), bound)):
            return folded
        if limits.out_of_time() or self._is_large():
            return folded
        if not any(self.structure.tainted):
            found = search(goal, self.structure, self.refinement, limits, start, rounds=1)
            return replace(found, bound=max(found.bound, bound))
        program = goal.program(whole(self.structure, self.refinement))
        relaxed = solve_linear(program.model, relaxed=True, deadline=limits.deadline)
        gap = limits.relative_gap
        if relaxed.values:
            start = self._rounded(goal, program, relaxed, start)
            if start and limits.close(goal.value(start.replay), bound):
                return Found(start, bound)
            # The solver compares with its own bound, at first the relaxation's: stop it where the
            # folded program's would, and at half the gap, for its own bound grows meanwhile.
            ratio = relaxed.objective / max(bound / program.unit_ns, relaxed.objective, 1e-9)
            gap = max(gap, 1.0 - (1.0 - 0.5 * gap) * ratio)
        widened = replace(limits, relative_gap=gap)
        found = search(goal, self.structure, self.refinement, widened, start, rounds=1)
        return replace(found, bound=max(found.bound, bound))

    def _folded(self, goal: LeastTime, limits: Limits, start: Candidate | None) -> Found:
        """The folded program: with peak rows alone, then of placements that rebuild each layer in its turn."""
        rows = Refinement(peaks=self.refinement.peaks)  # one list: the program gets the rows, too
        rounds = 1 if self._is_large() else _PEAK_ROUNDS
        found = search_folded(
            goal, self.structure, rows, limits, start, refines=False, rounds=rounds
        )
        best, bound = found.best, found.bound
        if found.infeasible or (best and limits.close(goal.value(best.replay), bound)):
            return found
        if best is None and any(self.structure.tainted) and self._is_large():
            lossless = self._without_lossy().structure  # soon found, where all else takes its time
            best = soon_local(goal, lossless, self.refinement, limits)
        found = search_local(goal, self.structure, self.refinement, limits, best)
        return replace(found, bound=max(bound, found.bound))

    def _relaxed(self, goal: LeastTime, start: Candidate | None) -> Found:
        """The LP relaxation, rounded and repaired: quick, so whatever the time limit."""
        program = goal.program(whole(self.structure, self.refinement))
        result = solve_linear(program.model, relaxed=True)
        if result.outcome == "infeasible":
            return Found(start, 0, infeasible=True)
        return Found(self._rounded(goal, program, result, start), goal.bound(program, result))

    def _rounded(
        self, goal: LeastTime, program: Program, relaxed: LinearResult, start: Candidate | None
    ) -> Candidate | None:
        """The relaxation rounded and repaired, or ``start`` where that is better."""
        rounded = read_placement(program.variables, relaxed.values)
        repaired = repair(self.structure, rounded, goal.cap_bytes)
        return better(goal, start, repaired)

    def _lossless(
        self, goal: LeastTime, limits: Limits, best: Candidate | None
    ) -> Candidate | None:
        """The fastest placement without lossy copies, or ``best``: near the smallest caps it is soon found."""
        if not any(self.structure.tainted):
            return best
        found = self._without_lossy().least_time(goal.cap_bytes, limits.part(_LOSSLESS_SHARE), best)
        return found.best or best

    def _fenced(self, goal: LeastTime, limits: Limits) -> Candidate | None:
        """A placement that rebuilds no further ahead than it must to be under the cap."""
        for layers in _FENCES:
            fenced = self.structure.fenced(layers)
            if fenced.fences:
                add_fences(fenced, self.refinement)
                found = search(goal, fenced, self.refinement, limits.part(SHARE)).best
                if found is not None:
                    return found
        return None
