"""The rounds of a region, with compilations that are scripted: which plan is returned, which cap is named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hilore_planner.attempt import Attempt, is_repeated
from hilore_planner.compiling import RegionCompiler
from hilore_planner.correction import Aim, Correction, settled
from hilore_planner.errors import InfeasibleError
from hilore_planner.kept import KeptPlans, Known
from hilore_planner.partitioner import CutSettings, Planner
from hilore_planner.passes import compat
from hilore_planner.peak import StepPeak, Timeline
from hilore_planner.plan import PlacementPlan
from hilore_planner.region import surroundings
from hilore_planner.solvers import replay, solve
from tests.plan_cases import MIB, toy_plan

PLAN = toy_plan()
ESTIMATE = PLAN.solution.peak_bytes


def _timeline(peak_bytes: int) -> Timeline:
    return Timeline((), 0, peak_bytes, 0, "", (), 0, 0, (), (), peak_bytes)


def _peak(peak_bytes: int) -> StepPeak:
    line = _timeline(peak_bytes)
    return StepPeak(peak_bytes, "backward", 0, 0, 0, peak_bytes, line, line)


@dataclass(frozen=True, slots=True)
class Scripted(RegionCompiler):
    """Compiles nothing: peaks by the kind of round, in the order of the rounds."""

    peaks: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def _compiled(self, key: str, planner: Planner, settings: CutSettings) -> Attempt:
        self.asked.append(key)
        cap, kind, _ = key.removeprefix(f"{self.kept.region}-").split("-")
        kind = cap if cap == "least" else kind
        peak_bytes = self.peaks[kind].pop(0) if self.peaks[kind] else 0
        if not peak_bytes:
            raise InfeasibleError("nothing", smallest_feasible_cap_bytes=ESTIMATE, holding=())
        # Frugal plans are slow.
        time_ns = 10**9 - peak_bytes
        solution = replace(PLAN.solution, objective_ns=time_ns)
        problem = replace(PLAN.problem, memory_cap_bytes=ESTIMATE if cap == "least" else int(cap))
        figures = replace(PLAN.predicted, peak_bytes=peak_bytes)
        plan = replace(PLAN, problem=problem, solution=solution, predicted=figures)
        plan = replace(plan, vocabulary=len(self.asked))
        self.kept.note(Known(key, peak_bytes, time_ns))
        return Attempt(lambda: None, plan, _peak(peak_bytes))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptPlans:
    monkeypatch.setattr(compat, "cache_folder", lambda: str(tmp_path))
    return KeptPlans("region")


def _no_plan(aim: Aim, plan: PlacementPlan | None) -> Any:
    return None


def _compiler(kept: KeptPlans, cap_bytes: int, **peaks: list[int]) -> Scripted:
    return Scripted(
        gm=torch.fx.GraphModule({}, torch.fx.Graph()),
        inputs=(),
        patches={},
        around=surroundings([torch.ones(1)]),
        cap_bytes=cap_bytes,
        kept=kept,
        planner=_no_plan,
        settings=lambda _: CutSettings(),
        is_given=lambda _: False,
        peaks={"loose": [], "strict": [], "least": []} | peaks,
    )


def test_one_cap_that_is_kept_at_once_is_compiled_once(kept: KeptPlans) -> None:
    compiler = _compiler(kept, 100 * MIB, loose=[100 * MIB])
    assert compiler.run().peak_bytes == 100 * MIB
    assert len(compiler.asked) == 1


def test_memory_that_saves_no_time_is_left(
    kept: KeptPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 10 of 100 MiB left; one percent of the update's time is worth a compilation."""
    threshold_ns = (PLAN.predicted.time_ns or 0) // 100
    for gain_ns, rounds in ((threshold_ns - 1, 1), (threshold_ns, 2)):
        asked: list[int] = []

        def gain(_: Attempt, room_bytes: int, gain_ns: int = gain_ns) -> int:
            asked.append(room_bytes)  # noqa: B023 - it is called within the round
            return gain_ns

        monkeypatch.setattr(Attempt, "gain_ns", gain)
        compiler = _compiler(kept, 100 * MIB, loose=[90 * MIB, 99 * MIB])
        compiler.run()
        assert len(compiler.asked) == rounds
        assert asked == [10 * MIB]


def test_what_more_memory_would_save_is_solved_for() -> None:
    problem = replace(PLAN.problem, memory_cap_bytes=400 * MIB)
    attempt = Attempt(lambda: None, replace(PLAN, problem=problem, solution=solve(problem)))
    more = solve(replace(problem, memory_cap_bytes=450 * MIB))
    assert attempt.gain_ns(0) == 0
    assert attempt.gain_ns(50 * MIB) == attempt.added_ns - more.objective_ns > 0


def test_a_corrected_estimate_comes_before_every_step_is_tied(kept: KeptPlans) -> None:
    compiler = _compiler(kept, 100 * MIB, loose=[110 * MIB, 99 * MIB], strict=[100 * MIB])
    assert compiler.run().peak_bytes == 99 * MIB
    compiler = _compiler(kept, 98 * MIB, loose=[110 * MIB, 101 * MIB], strict=[97 * MIB])
    assert compiler.run().peak_bytes == 97 * MIB
    assert ["-loose-" in key for key in compiler.asked] == [True, True, False]


def test_plans_that_keep_the_same_steps_in_order_compile_to_the_same() -> None:
    def attempt(above_bytes: int) -> Attempt:
        return Attempt(lambda: None, replace(PLAN, ordered_above_bytes=above_bytes))

    low, high = sorted({*replay(PLAN.problem, PLAN.solution.placement).position_bytes})[:2]
    assert is_repeated([attempt(low), attempt(high - 1)])
    assert not is_repeated([attempt(low), attempt(high)])
    assert not is_repeated([attempt(low)])


def test_a_refusal_names_the_least_peak_ever_compiled(kept: KeptPlans) -> None:
    compiler = _compiler(kept, 50 * MIB, least=[80 * MIB, 60 * MIB, 70 * MIB])
    with pytest.raises(InfeasibleError, match=f"{60 * MIB} bytes") as refused:
        compiler.run()
    assert refused.value.smallest_feasible_cap_bytes == 60 * MIB


def test_from_the_least_peak_on_no_cap_is_refused(kept: KeptPlans) -> None:
    for cap_bytes in (60 * MIB, 75 * MIB):
        compiler = _compiler(kept, cap_bytes, loose=[90 * MIB], least=[60 * MIB])
        found = compiler.run()
        assert found.peak_bytes <= cap_bytes
        assert found.plan is not None
        assert found.plan.problem.memory_cap_bytes == cap_bytes


def test_known_plans_come_fastest_first_and_only_of_their_region(kept: KeptPlans) -> None:
    slow, fast = Known("region-a", 1, 20), Known("region-b", 2, 10)
    for known in (slow, fast):
        kept.note(known)
    KeptPlans("regional").note(Known("regional-c", 3, 5))
    assert list(kept.known()) == [fast, slow]
    assert kept.plan("region-a") is None
    kept.keep("region-a", PLAN)
    assert kept.plan("region-a") == PLAN


def test_of_equally_fast_plans_a_known_one_with_less_memory_is_taken(kept: KeptPlans) -> None:
    found = _compiler(kept, 100 * MIB, loose=[100 * MIB]).run()
    for peak_bytes in (100 * MIB, 90 * MIB):
        known = Known(f"region-{peak_bytes}-loose-x", peak_bytes, found.added_ns)
        kept.note(known)
        kept.keep(known.key, PLAN)
        compiler = _compiler(kept, 100 * MIB, loose=[100 * MIB, peak_bytes])
        assert compiler.run().peak_bytes == peak_bytes
        assert (known.key in compiler.asked) is (peak_bytes < found.peak_bytes)


def test_a_plan_for_another_cap_is_one_for_this_cap_too() -> None:
    for cap_bytes in (2 * ESTIMATE, ESTIMATE - MIB):
        found = settled(PLAN, _peak(cap_bytes), cap_bytes, 0)
        assert found.problem.memory_cap_bytes == cap_bytes
        assert found.solution.peak_bytes <= cap_bytes
        assert found.solution.placement == PLAN.solution.placement
        assert found.solution.status == "feasible"


def test_on_a_gpu_the_first_placement_leaves_a_margin_unless_nothing_fits_then(
    kept: KeptPlans,
) -> None:
    aims: list[Aim] = []

    def planner(aim: Aim, plan: PlacementPlan | None) -> Any:
        aims.append(aim)

    on_cpu = surroundings([torch.ones(1)])
    on_gpu = replace(on_cpu, device=torch.device("cuda"))
    roomy, tight = ESTIMATE + MIB, ESTIMATE - MIB
    assert on_cpu.margin_bytes(roomy) == 0 < MIB < on_gpu.margin_bytes(roomy)
    # Scripted: of a peak of 0 it says that ESTIMATE is the least.
    for cap_bytes, peaks in ((roomy, [ESTIMATE]), (tight, [0, tight])):
        compiler = _compiler(kept, cap_bytes, loose=peaks)
        assert replace(compiler, around=on_gpu, planner=planner).run().peak_bytes <= cap_bytes
    added_bytes = [aim.correction.everywhere_bytes for aim in aims]
    margins = [on_gpu.margin_bytes(cap_bytes) for cap_bytes in (roomy, tight)]
    assert added_bytes == [*margins, margins[-1] - MIB]


def test_a_margin_is_no_difference_that_is_found() -> None:
    margin = Correction(MIB)
    problem = margin.applied(PLAN.problem)
    roomy = replace(PLAN, problem=problem)
    before, after = (replay(p, PLAN.solution.placement) for p in (PLAN.problem, problem))
    assert after.peak_bytes == before.peak_bytes + MIB
    assert margin.eased(MIB).applied(PLAN.problem) == PLAN.problem
    assert [(part.what, part.size_bytes) for part in margin.parts(problem)] == [("margin", MIB)]
    assert margin.eased(2 * MIB).parts(problem) == ()
    found = Correction().after(PLAN, _peak(ESTIMATE))
    assert margin.after(roomy, _peak(ESTIMATE)) == found
    assert any(found.shift_bytes)


def test_what_is_missed_may_be_laid_to_units_that_are_not_in_registers() -> None:
    peak, placement = _peak(2 * ESTIMATE), PLAN.solution.placement
    rebuilt = {u.name for u in PLAN.problem.units if not u.rebuilt_bytes} - {
        name for name, action in placement.items() if action == "store"
    }
    everywhere = Correction().after(PLAN, peak)
    laid = Correction().after(PLAN, peak, blames_units=True)
    assert everywhere.written == frozenset()
    assert laid.written == rebuilt != set()
    assert laid.key != replace(laid, written=frozenset()).key
    kept = placement | dict.fromkeys(rebuilt, "store")
    one, other = (replay(found.applied(PLAN.problem), placement) for found in (everywhere, laid))
    assert one.position_bytes == other.position_bytes
    one, other = (replay(found.applied(PLAN.problem), kept) for found in (everywhere, laid))
    assert sum(one.position_bytes) > sum(other.position_bytes)
