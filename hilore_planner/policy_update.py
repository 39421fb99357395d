"""``hilore.PolicyUpdate``: for each microbatch the fastest plan that its exposure allows."""

from __future__ import annotations

import logging
import math
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hilore_planner.backend import hilore
from hilore_planner.errors import OptionError
from hilore_planner.grpo.exposure import Exposure
from hilore_planner.options import Options
from hilore_planner.plan import PlacementPlan

log = logging.getLogger(__name__)

ExposureOf = Callable[..., Exposure]
_LEVELS = (0.5, 1.0, 2.0)
"""Budgets that plans are solved for, relative to the one that every microbatch is held to. A plan for more than the
budget serves microbatches whose exposure lies better than that of a typical one."""


@dataclass(frozen=True, slots=True)
class Level:
    """One plan of the table.

    Attributes:
        gradient_error: what it was solved for; 0 for the exact one.
        run: the compiled update.
        plan: its plan.
    """

    gradient_error: float
    run: Callable[..., Any]
    plan: PlacementPlan

    @property
    def added_ns(self) -> int:
        """Time the plan adds to an update that stores everything."""
        return self.plan.solution.objective_ns

    def risk(self, shares: Sequence[float]) -> float:
        """Squared gradient error that hardly any microbatch exceeds whose squared exposure is shared like this.

        Raises:
            OptionError: the plan's tiers are for another number of sequences.
        """
        risks = self.plan.sequence_risks or (self.plan.solution.risk,)
        if len(risks) == 1:
            return risks[0]
        if len(risks) != len(shares):
            raise OptionError(
                f"the microbatch has {len(shares)} sequences; accepted: the {len(risks)} the plans' tiers are for"
            )
        return sum(share * risk for share, risk in zip(shares, risks, strict=True))


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided for one microbatch, before its forward.

    Attributes:
        level: index in the table.
        predicted_gradient_error: that hardly any microbatch of its exposure exceeds.
        reason: why this plan.
        is_sure: whether the microbatch's exposure was known.
    """

    level: int
    predicted_gradient_error: float
    reason: str
    is_sure: bool


class PolicyUpdate:
    """An update compiled under several plans, from exact to frugal.

    Call it like the update itself, and take the backward of what it returns. All plans have the same cap. The plan is
    chosen from the microbatch's exposure before the forward; the backward is that of the same plan. Nothing is solved,
    and no device is waited for, while training. Where exposure is not known, the exact plan runs.

    Args:
        update: not compiled: batch tensors in, loss out.
        gradient_error: bound on the relative gradient error of every microbatch.
        exposure_of: gives a microbatch's exposure from the same arguments, on the CPU, before the forward. None: plans
            are chosen for a typical microbatch.
        options: of the backend, such as ``memory_cap``; ``exposure`` is the risk profile.
        folder: where plans are kept for the next start; None: nowhere.

    Raises:
        OptionError: a bad option; ``plan`` and ``gradient_error`` have places of their own.
    """

    def __init__(
        self,
        update: Callable[..., Any],
        *,
        gradient_error: float,
        exposure_of: ExposureOf | None = None,
        options: Mapping[str, object] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        given = dict(options or {})
        for name in ("plan", "gradient_error"):
            if name in given:
                raise OptionError(
                    f"option {name} is {given[name]!r}; accepted here: none, plans are chosen"
                )
        Options.parse({**given, "gradient_error": gradient_error})
        self._update = update
        self._budget = gradient_error
        self._exposure_of = exposure_of
        self._options = given
        self._folder = None if folder is None else Path(folder)
        self._levels: tuple[Level, ...] = ()
        self._counts: Counter[str] = Counter()
        self._errors = 0.0
        self.last: Choice | None = None
        """Of the microbatch that ran last."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """The table, fastest first; empty before :meth:`prepare`."""
        return self._levels

    def prepare(self, *batch: Any) -> None:
        """Plan and compile everything, for microbatches of this shape; the first call does it otherwise.

        Raises:
            InfeasibleError: not even the exact plan that needs least memory fits the cap.
            OptionError: a plan file has tiers without their risks.
        """
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if self._folder is None else self._folder
            folder.mkdir(parents=True, exist_ok=True)
            found = [self._level(budget, folder, batch) for budget in budgets(self._budget)]
        distinct = {
            str(sorted(level.plan.solution.placement.items())): level for level in reversed(found)
        }
        self._levels = tuple(sorted(distinct.values(), key=lambda level: level.added_ns))
        for level in self._levels:
            log.info("plan for gradient error %g: %s", level.gradient_error, level.plan.summary())

    def __call__(self, *batch: Any) -> Any:
        """Run the update's forward under the plan that suits this microbatch."""
        if not self._levels:
            self.prepare(*batch)
        choice = self.choose(*batch)
        self._count(choice)
        return self._levels[choice.level].run(*batch)

    def choose(self, *batch: Any) -> Choice:
        """The fastest plan whose risk with this microbatch's exposure is in budget; runs nothing."""
        try:
            shares = self._shares(batch)
            risks = [level.risk(shares) for level in self._levels]
        except OptionError as error:
            return Choice(self._exact, 0.0, f"exact: {error}", is_sure=False)
        index = next(i for i, risk in enumerate(risks) if risk <= self._budget**2)
        faster = f"; {index} faster would risk more" if index else ""
        return Choice(
            index, math.sqrt(risks[index]), f"the fastest in budget{faster}", is_sure=True
        )

    def metrics(self) -> dict[str, float]:
        """Counts since the start: microbatches, by plan, and the mean predicted gradient error."""
        total = self._counts["microbatches"]
        counted = {f"hilore/{name}": float(count) for name, count in self._counts.items()}
        return counted | {"hilore/predicted_gradient_error": self._errors / max(total, 1)}

    @property
    def _exact(self) -> int:
        return next(i for i, level in enumerate(self._levels) if not level.gradient_error)

    def _shares(self, batch: Sequence[Any]) -> list[float]:
        """Each sequence's part of the microbatch's squared exposure; nothing exposed is shared evenly."""
        if self._exposure_of is None:
            return []
        squares = self._exposure_of(*batch).sequence_squares
        if squares.device.type != "cpu":
            raise OptionError(
                f"the exposure is on {squares.device}, and reading it would wait for the device; accepted: cpu"
            )
        found: list[float] = squares.tolist()
        total = sum(found)
        if not math.isfinite(total):
            raise OptionError(
                f"the squared exposure of the microbatch is {total}; accepted: a finite number"
            )
        return [square / total for square in found] if total else [1 / len(found)] * len(found)

    def _level(self, budget: float, folder: Path, batch: Sequence[Any]) -> Level:
        path = plan_path(folder, budget)
        options: dict[str, Any] = {
            **self._options,
            "gradient_error": budget,
            "plan": str(path),
        }
        run = torch.compile(
            _own_code(self._update, budget), backend=hilore, dynamic=False, options=options
        )
        run(*batch)
        plan = PlacementPlan.load(path)
        _check_tiers(plan, path)
        return Level(budget, run, plan)

    def _count(self, choice: Choice) -> None:
        self.last = choice
        error = self._levels[choice.level].gradient_error
        self._counts["microbatches"] += 1
        self._counts[f"microbatches_at_{error:g}"] += 1
        self._counts["microbatches_unsure"] += not choice.is_sure
        self._errors += choice.predicted_gradient_error
        log.info(
            "microbatch %d: plan for gradient error %g, predicted %.3g; %s",
            self._counts["microbatches"],
            error,
            choice.predicted_gradient_error,
            choice.reason,
        )


def _check_tiers(plan: PlacementPlan, path: Path) -> None:
    """A plan that was solved again from a file has lost what a sequence risks, which tiers are chosen by."""
    is_tiered = any("[" in action for action in plan.solution.placement.values())
    if is_tiered and not plan.sequence_risks:
        raise OptionError(
            f"plan {path} keeps sequences by tiers, and does not say what each risks; accepted: a plan that was made "
            "with a risk profile as option exposure: delete the file, and give the option"
        )


def budgets(gradient_error: float) -> tuple[float, ...]:
    """What the plans of a table are solved for: nothing first."""
    return (0.0, *(factor * gradient_error for factor in _LEVELS if gradient_error))


def plan_path(folder: Path, budget: float) -> Path:
    """Where the table in ``folder`` keeps the plan for a budget."""
    return folder / f"gradient-error-{budget:g}.json"


def _own_code(update: Callable[..., Any], budget: float) -> Callable[..., Any]:
    """The same function with code of its own: Dynamo compiles one code only so many times, then runs it eagerly."""
    if not isinstance(update, types.FunctionType):
        return update
    code = update.__code__.replace(co_name=f"{update.__code__.co_name}_{budget:g}")
    copy = types.FunctionType(
        code, update.__globals__, update.__name__, update.__defaults__, update.__closure__
    )
    copy.__kwdefaults__ = update.__kwdefaults__
    return copy
