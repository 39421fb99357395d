"""The plans whose gradient error the risk benchmark predicts and measures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from hilore_planner.bench.risk.allocate import allocate, forms_of, with_placement
from hilore_planner.bench.risk.task import exposure_of
from hilore_planner.bench.risk.worker import (
    PLANNED,
    PROFILE,
    TYPICAL_PROFILE,
    WINNER_PROFILE,
    Subject,
)
from hilore_planner.calibration.capture import CapturedUpdate
from hilore_planner.calibration.interpret import Change, JointInterpreter
from hilore_planner.calibration.measure import MeasuredBatch
from hilore_planner.calibration.model import CalibratedRisk
from hilore_planner.calibration.profile import RiskProfile
from hilore_planner.codec_names import STORE, Rows
from hilore_planner.grpo.exposure import typical_tiers
from hilore_planner.grpo.tiers import make_tiers
from hilore_planner.offline.planner import plan
from hilore_planner.partitioner import CutSettings
from hilore_planner.passes.codecs.offers import tiered_names
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers.problem import compress_action

CODECS = ("bf16", "int8", "fp8_e4m3", "int6", "int4")
_TIERS = 4
"""Into how many the sequences are cut."""
_LARGEST = 0.9
"""Budget under which every codec is offered."""
_FINE = 1e-3
"""Relative to the bytes that are shared out."""
_SECONDS = 60.0
"""More than finding the smallest cap takes."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Makes plans of one update for the microbatches that its profile describes."""

    subject: Subject
    folder: Path
    one_winner: bool
    profile: RiskProfile
    profile_path: Path
    codecs: tuple[str, ...]
    roomy: PlacementPlan
    """Everything stored."""
    roomy_path: Path
    model: CalibratedRisk

    @classmethod
    def of(cls, subject: Subject, folder: Path, *, one_winner: bool = False) -> Candidates:
        """For usual microbatches, or for those with one winner in each group.

        For the latter tiers are offered, and without margins: what is to be least is the error of a typical batch.
        """
        path = folder / (WINNER_PROFILE if one_winner else PROFILE)
        profile = RiskProfile.load(path)
        if one_winner:
            profile = without_margins(profile)
            path = folder / TYPICAL_PROFILE
            profile.save(path)
        codecs = codecs_for(subject, one_winner=one_winner)
        batch = subject.batch(1, one_winner=one_winner)
        roomy = plan(
            subject.update,
            *batch,
            gradient_error=_LARGEST,
            exposure=profile,
            codecs=list(codecs),
            **PLANNED,
        )
        roomy_path = folder / f"roomy-{path.name}"
        roomy.save(roomy_path)
        captured = CapturedUpdate.of(subject.update, batch, CutSettings(head="off"))
        model = CalibratedRisk(profile, captured.graph)
        return cls(subject, folder, one_winner, profile, path, codecs, roomy, roomy_path, model)

    def tight(self) -> PlacementPlan:
        """The exact plan for a cap ``room`` of the way from the smallest there is to everything stored.

        Raises:
            SolverLimitError: the smallest cap was not found in time.
        """
        fixed = min(position.fixed_bytes for position in self.roomy.problem.positions)
        floor = self.roomy.solve(
            memory_cap=fixed, gradient_error=0.0, solver_seconds=_SECONDS, must_fit=False
        )
        least = floor.solution.smallest_feasible_cap_bytes
        if least is None:
            floor.require_feasible()
            least = floor.solution.peak_bytes
        most = self.roomy.solution.peak_bytes
        return floor.solve(memory_cap=least + int(self.subject.setting.room * (most - least)))

    def predicted(self, path: Path) -> float:
        """Relative gradient error of a plan on a typical batch."""
        return math.sqrt(self.model.typical(PlacementPlan.load(path).solution.placement))

    def given(self, compressed: dict[str, str]) -> PlacementPlan:
        """Everything stored but for some units."""
        return with_placement(self.roomy, {**self.roomy.solution.placement, **compressed})

    def split(
        self, names: Iterable[str], codecs: Sequence[str], budget_bytes: int
    ) -> dict[str, str]:
        """The best codecs for some units within a budget."""
        return allocate(forms_of(self.roomy, list(names), codecs), budget_bytes)

    def spread(self, names: Iterable[str], codecs: Sequence[str], error: float) -> dict[str, str]:
        """As few bytes as ``codecs`` need for some units, with a typical gradient error up to ``error``."""
        forms = forms_of(self.roomy, list(names), codecs)
        least = sum(options[0].kept_bytes for options in forms.values())
        most = sum(options[-1].kept_bytes for options in forms.values())
        while most - least > _FINE * most:
            middle = (least + most) // 2
            placement = {**self.roomy.solution.placement, **allocate(forms, middle)}
            is_within = self.model.typical(placement) <= error**2
            least, most = (least, middle) if is_within else (middle, most)
        return allocate(forms, most)

    def offered(self, codec: str) -> list[str]:
        """Units that backward reads and that may be kept by ``codec``."""
        units = self.roomy.problem.units
        return [u.name for u in units if u.read_at and any(f.codec == codec for f in u.codecs)]

    def bytes_of(self, actions: Mapping[str, str]) -> int:
        """What units take that are stored, or kept as copies."""
        units = self.roomy.problem.units
        known = {(u.name, compress_action(f.codec)): f.kept_bytes for u in units for f in u.codecs}
        known |= {(unit.name, STORE): unit.kept_bytes for unit in units}
        return sum(known[action] for action in actions.items())


def without_margins(profile: RiskProfile) -> RiskProfile:
    """The same, with risks as they are on a typical batch."""
    kept, rebuilt = (
        tuple(msgspec.structs.replace(one, margin=1.0) for one in classes)
        for classes in (profile.kept, profile.rebuilt)
    )
    return msgspec.structs.replace(profile, kept=kept, rebuilt=rebuilt, margin=1.0)


def codecs_for(subject: Subject, *, one_winner: bool) -> tuple[str, ...]:
    """Plain codecs; with one winner a group, tiers for the exposure of a microbatch, too."""
    if not one_winner:
        return CODECS
    setting = subject.setting
    rows = Rows(setting.sequences, setting.prompt + setting.response - 1)
    exposures = (exposure_of(*subject.batch(seed, one_winner=True)) for seed in setting.seeds)
    tiers = typical_tiers(exposures, _TIERS)
    dtype: torch.dtype = getattr(torch, setting.dtype)
    return (*CODECS, *tiered_names(tiers, rows, CODECS, dtype))


def factors(shares: Sequence[float]) -> dict[str, float]:
    """By number of tiers, how much less error they should have at equal bytes, with codecs of any size.

    Args:
        shares: of squared exposure, by sequence; all of as many rows.
    """
    ones, live = [1] * len(shares), [True] * len(shares)
    counts = (*range(2, _TIERS + 1), len(shares))
    return {
        str(count): round(2 ** make_tiers(list(shares), ones, live, count).bits, 3)
        for count in counts
    }


def papers_units(names: Iterable[str]) -> list[str]:
    """One MLP tensor of each layer: what the down-projection reads."""
    return [name for name in names if name.endswith(".mlp:mul")]


def unscaled_e4m3(value: Tensor) -> Tensor:
    """The paper's codec: a plain cast, values beyond its range at its end."""
    return value.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(value.dtype)


def papers_errors(subject: Subject, seeds: Sequence[int], *, one_winner: bool) -> list[float]:
    """Relative gradient errors of the paper's rule, op by op as no plan can hold its codec."""
    batches = [subject.batch(seed, one_winner=one_winner) for seed in seeds]
    captured = CapturedUpdate.of(subject.update, batches[0], CutSettings(head="off"))
    errors = []
    for batch in batches:
        interpreter = JointInterpreter.of(captured.graph)
        measured = MeasuredBatch(interpreter, captured.inputs(batch), None)
        changes: dict[str, Change] = dict.fromkeys(
            papers_units(captured.graph.units), unscaled_e4m3
        )
        errors.append(math.sqrt(measured.share(changes)))
    return errors
