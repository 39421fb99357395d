"""Compile a region so that its peak, on the code Inductor really wrote, is under the cap.

The solver works on an estimate: it cannot know what Inductor fuses. So each compiled plan is run dry, line by line of
the generated code; where its peak is above the cap, or well below it while time is to be gained, the difference
corrects the estimate and the region is planned again. The best plan under the cap is returned; one above never is.
Where none is found, the plan of the least peak is compiled, whatever the cap: it decides what is feasible.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hilore_planner.attempt import Attempt, corrected, fastest, is_repeated
from hilore_planner.checking import dry_peak
from hilore_planner.correction import Aim, Correction, settled
from hilore_planner.errors import InfeasibleError, NoPlacementError, PlanFileError
from hilore_planner.kept import KeptPlans, Known
from hilore_planner.partitioner import CutSettings, HilorePartitioner, Planner
from hilore_planner.passes import compat
from hilore_planner.peak.wrapper import capture_wrappers
from hilore_planner.plan import PlacementPlan
from hilore_planner.region import Surroundings
from hilore_planner.sizes import format_bytes
from hilore_planner.uncollected import uncollected

log = logging.getLogger(__name__)

LOOSE_ROUNDS = 3
STRICT_ROUNDS = 2
_LEAST_ROUNDS = 3
_NAMED = 5
"""Units that a refusal names."""
_WORTH_A_ROUND = 0.02
"""Share of the room under the cap that must be unused before it is worth compiling again."""
_WORTH_ITS_TIME = 0.01
"""Share of the update's time that must be gained then."""
_EXACT = 0.002
"""An estimate this near to the compiled code's peak has nothing to learn from it."""

PlannerOf = Callable[[Aim, PlacementPlan | None], Planner]
"""Plans for an aim; or follows a plan that was made before."""


@dataclass(frozen=True, slots=True)
class RegionCompiler:
    """Everything about one region that stays the same from round to round."""

    gm: torch.fx.GraphModule
    inputs: Sequence[Any]
    patches: dict[str, Any]
    around: Surroundings
    cap_bytes: int
    kept: KeptPlans
    planner: PlannerOf
    settings: Callable[[Aim], CutSettings]
    is_given: Callable[[PlacementPlan], bool]
    """Whether a plan comes from the user's file: then it is checked, and no other is looked for."""

    def run(self) -> Attempt:
        """Plan and compile until the peak is under the cap and little room is left.

        Where that leads to nothing, the plan of the least peak is compiled: no cap at or above its peak is refused.

        Raises:
            InfeasibleError: no plan was found whose compiled code stays under the cap; the cap it names was kept.
        """
        tried = self._rounds()
        last = tried[-1] if tried else None
        if last is not None and (last.plan is None or last.peak is None):
            return last
        if last is not None and last.plan is not None and self.is_given(last.plan):
            return self._checked(last)
        best = self._known(fastest(tried, self.cap_bytes))
        if best is None:
            tried += self._least_rounds()
            best = fastest(tried, self.cap_bytes)
        if best is None:
            raise self._infeasible(tried)
        return self._settled(best)

    def _rounds(self) -> list[Attempt]:
        """Attempts at the cap; none where the estimate knows of no placement.

        Tying every step follows the estimate more closely, but keeps Inductor from fusing: it comes last.
        """
        tried: list[Attempt] = []
        margin = Correction(self.around.margin_bytes(self.cap_bytes))
        for is_strict, rounds in ((False, LOOSE_ROUNDS), (True, STRICT_ROUNDS)):
            aim = Aim(self.cap_bytes, is_strict=is_strict, correction=margin)
            tried += self._rounds_for(aim, rounds, tried)
            if not tried or self._is_final(tried[-1]) or fastest(tried, self.cap_bytes):
                break
        return tried

    def _rounds_for(self, aim: Aim, rounds: int, before: Sequence[Attempt]) -> list[Attempt]:
        """Attempts at one aim, each with what the one before taught."""
        tried: list[Attempt] = []
        while len(tried) < rounds:
            found = self._next(aim, [*before, *tried])
            if found is None:
                break
            aim, last = found
            tried.append(last)
            if self._is_final(last):
                break
            self._log(len(before) + len(tried), last)
            if self._is_good(last) or is_repeated(tried):
                break
            aim = corrected(aim, last)
        return tried

    def _is_final(self, attempt: Attempt) -> bool:
        """Whether there is no other plan to look for: none was made, it was not checked, or it is the user's."""
        return attempt.plan is None or attempt.peak is None or self.is_given(attempt.plan)

    def _next(self, aim: Aim, tried: Sequence[Attempt]) -> tuple[Aim, Attempt] | None:
        """One more round, and what it was asked for in the end; None where there is nothing to try."""
        try:
            return aim, self._attempt(aim, tried)
        except NoPlacementError as error:
            least_bytes = error.smallest_feasible_cap_bytes
        if least_bytes is None or fastest(tried, self.cap_bytes) is not None:
            return None
        missing_bytes = least_bytes - self.cap_bytes
        if not tried and missing_bytes > aim.correction.everywhere_bytes:
            return None
        # The margin may be too wide, and the difference found that of one plan only: look what the nearest plan takes.
        aim = replace(aim, correction=aim.correction.eased(missing_bytes))
        with contextlib.suppress(NoPlacementError):
            return aim, self._attempt(aim, tried)
        return None

    def _least_rounds(self) -> list[Attempt]:
        """Attempts at the least peak, whatever the cap."""
        tried: list[Attempt] = []
        aim = Aim(None, is_strict=True)
        while len(tried) < _LEAST_ROUNDS:
            try:
                last = self._attempt(aim, tried)
            except NoPlacementError:
                if not tried:
                    raise
                break
            tried.append(last)
            if last.plan is None or last.peak is None:
                break
            self._log(len(tried), last)
            difference = abs(last.peak_bytes - last.plan.solution.peak_bytes)
            if difference <= _EXACT * last.peak_bytes or is_repeated(tried):
                break
            aim = corrected(aim, last)
        return tried

    def _known(self, best: Attempt | None) -> Attempt | None:
        """A plan made for another cap that stays under this one and is better than ``best``; else ``best``."""
        for known in self.kept.known():
            if best is not None and known.rank >= best.rank:
                break
            plan = self.kept.plan(known.key) if known.peak_bytes <= self.cap_bytes else None
            if plan is None:
                continue
            aim = Aim(plan.problem.memory_cap_bytes)
            found = self._compiled(known.key, self.planner(aim, plan), self._settings(aim, plan))
            if found.peak is not None and found.peak_bytes <= self.cap_bytes:
                return found
        return best

    def _checked(self, attempt: Attempt) -> Attempt:
        if attempt.peak_bytes > self.cap_bytes:
            raise PlanFileError(
                f"the plan's compiled code needs {format_bytes(attempt.peak_bytes)} here, more than the cap of "
                f"{format_bytes(self.cap_bytes)}; raise memory_cap, or re-solve the plan for a lower cap "
                "(`hilore solve PLAN --memory-cap ...`)"
            )
        return attempt

    def _settled(self, attempt: Attempt) -> Attempt:
        """With the plan as one for this cap, where it was made for another."""
        assert attempt.plan is not None
        if attempt.plan.problem.memory_cap_bytes == self.cap_bytes or attempt.peak is None:
            return attempt
        plan = settled(attempt.plan, attempt.peak, self.cap_bytes, attempt.beyond_bytes)
        return replace(attempt, plan=plan)

    def _attempt(self, aim: Aim, tried: Sequence[Attempt]) -> Attempt:
        """One more round; its positions are those of the others only if its head is cut alike."""
        settings = self._settings(aim, tried[-1].plan if tried else None)
        return self._compiled(f"{self.kept.region}-{aim.key}", self.planner(aim, None), settings)

    def _settings(self, aim: Aim, before: PlacementPlan | None) -> CutSettings:
        settings = self.settings(aim)
        if before is None:
            return settings
        return replace(settings, decided_head=lambda _: before.head)

    def _compiled(self, key: str, planner: Planner, settings: CutSettings) -> Attempt:
        attempt = self._compile(key, planner, settings, self.patches)
        if attempt.plan is None and not attempt.reason:
            # The graph came from Inductor's cache but its plan is gone from ours: make both again.
            patches = {**self.patches, "fx_graph_cache": False}
            attempt = self._compile(key, planner, settings, patches)
        if attempt.peak is not None:
            self.kept.note(Known(key, attempt.peak_bytes, attempt.added_ns))
        return attempt

    def _compile(
        self, key: str, planner: Planner, settings: CutSettings, patches: dict[str, Any]
    ) -> Attempt:
        start = time.perf_counter()
        partitioner = HilorePartitioner(key, planner, settings)
        try:
            with capture_wrappers() as wrappers:
                compiled = compat.compile_graph(
                    self.gm, self.inputs, {**patches, "custom_partitioner_fn": partitioner}
                )
        except Exception:
            if partitioner.error is not None:
                raise partitioner.error from None
            raise
        compiled_at = time.perf_counter()
        planned = partitioner.planned
        plan = self.kept.plan(key) if planned is None else planned.plan
        if planned is not None:
            self.kept.keep(key, planned.plan)
        if plan is None:
            return Attempt(compiled, None, reason=partitioner.unplanned_reason)
        check_start = time.perf_counter()
        with uncollected():
            peak = dry_peak(wrappers, self.around)
        checking_seconds = time.perf_counter() - check_start
        if peak is not None:
            figures = replace(plan.predicted, peak_bytes=peak.peak_bytes + self.around.slack_bytes)
            plan = replace(plan, predicted=figures)
        return Attempt(
            compiled,
            plan,
            peak,
            graphs=partitioner.graphs,
            steps=planned.steps if planned is not None else (),
            planning_seconds=partitioner.seconds + checking_seconds,
            compile_seconds=compiled_at - start - partitioner.measuring_seconds + checking_seconds,
        )

    def _is_good(self, attempt: Attempt) -> bool:
        """Under the cap, and nothing much left to gain."""
        assert attempt.plan is not None
        room = self.cap_bytes - attempt.peak_bytes
        if room < 0:
            return False
        least = _WORTH_A_ROUND * (self.cap_bytes - self.around.base_bytes)
        unused_by_solver = self.cap_bytes - attempt.plan.solution.peak_bytes
        if room < least or unused_by_solver > least:
            return True
        return attempt.gain_ns(room) < _WORTH_ITS_TIME * (attempt.plan.predicted.time_ns or 0)

    def _log(self, number: int, attempt: Attempt) -> None:
        assert attempt.plan is not None
        log.info(
            "round %d: estimated peak %s, compiled %s, cap %s",
            number,
            format_bytes(attempt.plan.solution.peak_bytes),
            format_bytes(attempt.peak_bytes),
            format_bytes(self.cap_bytes),
        )

    def _infeasible(self, tried: Sequence[Attempt]) -> InfeasibleError:
        """Names the least peak of all plans that were ever compiled."""
        least = min(tried, key=lambda attempt: attempt.peak_bytes)
        least_bytes = min([least.peak_bytes, *(known.peak_bytes for known in self.kept.known())])
        holding = least.holding()
        return InfeasibleError(
            f"memory_cap {format_bytes(self.cap_bytes)} ({self.cap_bytes} bytes): the smallest cap that the compiled "
            f"update was found to keep is {format_bytes(least_bytes)} ({least_bytes} bytes); raise memory_cap to that, "
            f"or shrink the microbatch; it is held up by {', '.join(holding[:_NAMED])}",
            smallest_feasible_cap_bytes=least_bytes,
            holding=holding,
        )
