"""``hilore bench peak --device cpu``: predicted against counted peaks, for six small architectures.

As on a GPU, but every allocation is counted exactly. Each ladder of caps is climbed in one process from the smallest
cap that is kept, so that what is compiled for one rung helps the next. Beside the ladder stand updates that are not
planned: checkpointed, and under torch's memory budget, each followed by a plan that saves no more bytes than it does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from hilore_planner.backend import hilore
from hilore_planner.bench.peak import ERRORS, SAVED_AS, is_overtaken, ladder_caps
from hilore_planner.bench.rivals import measured_fields, rivals, tried, with_saved_bytes
from hilore_planner.bench.runner import Row
from hilore_planner.bench.small_models import SmallUpdate, small_update
from hilore_planner.bench.trial import storage_bytes
from hilore_planner.bench.worker import counted_rounds, planned_fields
from hilore_planner.errors import InfeasibleError
from hilore_planner.plan import PlacementPlan

PLENTY_BYTES = 2**33
_COMPARED = "exact"
"""The ladder beside which other updates stand."""
_SOLVER_SECONDS = 2.0
"""For one cap: the updates are small, and the solver is not what is measured."""


def bench_peak_cpu(names: Sequence[str], *, rungs: int, side_by_side: int) -> Iterator[list[Row]]:
    """All rows of an architecture so far, after each of its ladders; ``side_by_side`` are climbed at a time."""
    context = get_context("spawn")
    with ProcessPoolExecutor(side_by_side, mp_context=context, max_tasks_per_child=1) as pool:
        ladders = {
            pool.submit(ladder_rows, name, label, rungs): (name, label)
            for name in names
            for label in ERRORS
        }
        found: dict[tuple[str, str], list[Row]] = {}
        for future in as_completed(ladders):
            name, label = ladders[future]
            found[name, label] = future.result()
            yield [row for each in ERRORS for row in found.get((name, each), ())]


def ladder_rows(name: str, label: str, rungs: int) -> list[Row]:
    """Every cap's plan, compiled and measured, from the smallest cap on; the exact ladder with its rivals.

    To be run in a process of its own: it uses a compilation cache of its own, and one thread.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        climber = Climber(small_update(name), ERRORS[label])
        most_bytes = climber.row(PLENTY_BYTES)["predicted_peak_bytes"]
        caps = ladder_caps(climber.least_bytes(), most_bytes, rungs)
        rows = [climber.row(cap_bytes) for cap_bytes in caps]
        # All plans are known now: where one of another cap is better, it is taken.
        rows = [climber.row(row["cap_bytes"]) if is_overtaken(row, rows) else row for row in rows]
        named = [{"variant": f"hilore {label}"} | row for row in rows]
        return named + (rival_rows(climber) if label == _COMPARED else [])


def rival_rows(climber: Climber) -> list[Row]:
    """Rows of updates that are not planned, each followed by that of a plan with no more saved bytes."""
    roomy, rows = climber.roomy_plan(), list[Row]()
    for variant, trial in rivals(climber.update.name):
        row = {"setting": climber.update.name, "variant": variant, "cap_bytes": None, "seed": 0}
        rows.append(row | measured_fields(trial))
        limited = climber.saving_row(roomy, trial.saved_bytes, trial.peak_bytes)
        rows.append({"variant": SAVED_AS.format(variant)} | limited)
    return rows


@dataclass(frozen=True, slots=True)
class Climber:
    """Plans, compiles and measures one update under one cap after another."""

    update: SmallUpdate
    gradient_error: float = 0.0

    def row(self, cap_bytes: int) -> Row:
        """What the update takes under a cap.

        Raises:
            InfeasibleError: no plan was found for it.
        """
        with tempfile.TemporaryDirectory() as folder:
            return self._row(Path(folder) / "plan.json", cap_bytes)

    def roomy_plan(self) -> PlacementPlan:
        """The plan where memory is plentiful."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            self._planned(path, PLENTY_BYTES)(*self.update.batch)
            return PlacementPlan.load(path)

    def saving_row(self, roomy: PlacementPlan, saved_bytes: int, peak_bytes: int) -> Row:
        """What the update takes where no more than so many bytes are saved, under a cap of ``peak_bytes`` if it can."""
        model, batch = self.update.model, self.update.batch
        limited = with_saved_bytes(
            roomy,
            saved_bytes,
            peak_bytes=peak_bytes,
            base_bytes=storage_bytes([*model.parameters(), *model.buffers(), *batch]),
        )
        if limited is None:
            return {"setting": self.update.name, "cap_bytes": None, "refused": True}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            limited.save(path)
            row = self._row(path, PLENTY_BYTES)
        # A given file stays as it is: these are the roomy plan's.
        del row["predicted_peak_bytes"], row["ratio"]
        return row | {"cap_bytes": None}

    def _row(self, path: Path, cap_bytes: int) -> Row:
        with counted_rounds() as rounds:
            trial = tried(self.update, self._planned(path, cap_bytes))
        fields = planned_fields(path)
        return {
            "setting": self.update.name,
            "cap_bytes": cap_bytes,
            "gradient_error": self.gradient_error,
            "seed": 0,
            "refused": False,
            "rounds": rounds.count,
            **fields,
            **measured_fields(trial),
            "ratio": round(fields["predicted_peak_bytes"] / trial.peak_bytes, 6),
        }

    def least_bytes(self) -> int:
        """The smallest cap that is kept: what the error for a smaller one names."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                tried(self.update, self._planned(Path(folder) / "plan.json", 1))
            except InfeasibleError as error:
                return error.smallest_feasible_cap_bytes or 0
        raise AssertionError("an update was compiled under one byte")

    def _planned(self, plan: Path, cap_bytes: int) -> Any:
        options: dict[str, Any] = {
            "memory_cap": cap_bytes,
            "reserved": 0,
            "gradient_error": self.gradient_error,
            "solver_seconds": _SOLVER_SECONDS,
            "plan": plan,
        }
        torch._dynamo.reset()
        return torch.compile(self.update.loss, dynamic=False, backend=hilore, options=options)
