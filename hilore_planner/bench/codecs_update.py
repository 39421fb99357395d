"""What keeping everything by a codec adds to a whole update, over storing it.

The update is planned without a cap, which stores what backward reads. Everything stored that a codec takes is then kept
by that codec instead; nothing else differs. Where nothing may be stored that a codec takes, a plan would rather make
again what is pointwise work away from other copies: that is a row of its own. A profile says which kernels take the
time. The plan that stores runs twice, first and last: by how much it differs from itself is noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hilore_planner.bench.codecs import LOSSY
from hilore_planner.bench.risk.allocate import STORE, with_placement
from hilore_planner.bench.runner import Job, Row, run_led
from hilore_planner.bench.setting import Setting, Variant
from hilore_planner.errors import OptionError
from hilore_planner.plan import PlacementPlan
from hilore_planner.solvers import solve
from hilore_planner.solvers.problem import compress_action

_STORED, _AGAIN = "everything stored", "everything stored, again"
_ANY_ERROR = 0.9
"""Under which every codec is offered; there is no cap to use one for."""


def bench_updates(
    settings: Sequence[Setting], codecs: Sequence[str], *, device: str, side_by_side: int
) -> Iterator[Row]:
    """Rows of every setting, as they come: everything stored, by each codec, and stored again; timed in turn.

    Raises:
        OptionError: one of the ``codecs`` is none, or takes no activations in half precision.
    """
    unknown = [name for name in codecs if name not in LOSSY]
    if unknown:
        raise OptionError(f"--codec is {unknown[0]!r}; accepted: {', '.join(LOSSY)}")
    for setting in settings:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stored.json"
            stored = Job(setting, _variant(_STORED, _ANY_ERROR), path)
            then = partial(_jobs, setting, path, codecs)
            yield from run_led(stored, then, device=device, side_by_side=side_by_side)


def _variant(name: str, gradient_error: float) -> Variant:
    return Variant(name, "hilore", gradient_error=gradient_error, costs="roofline", attribute=True)


def _jobs(setting: Setting, path: Path, codecs: Sequence[str]) -> list[Job]:
    """None where there is no plan that stores."""
    if not path.exists():
        return []
    stored = PlacementPlan.load(path)
    plans = {f"everything by {codec}": everything_by(stored, codec) for codec in codecs}
    plans |= {f"nothing stored, {codec}": nothing_stored(stored, codec) for codec in codecs}
    plans |= {_AGAIN: stored}
    jobs = []
    for name, plan in plans.items():
        file = path.with_name(f"{name}.json")
        plan.save(file)
        jobs.append(Job(setting, _variant(name, plan.problem.gradient_error), file))
    return jobs


def everything_by(stored: PlacementPlan, codec: str) -> PlacementPlan:
    """The plan with every stored unit that may be kept by ``codec`` kept by it."""
    takes = {u.name for u in stored.problem.units if any(f.codec == codec for f in u.codecs)}
    placement = {
        name: compress_action(codec) if action == STORE and name in takes else action
        for name, action in stored.solution.placement.items()
    }
    return with_placement(stored, placement)


def nothing_stored(stored: PlacementPlan, codec: str) -> PlacementPlan:
    """The fastest plan in which what ``codec`` takes is kept by it or made again."""
    units = tuple(
        replace(unit, can_store=False, codecs=offered)
        if (offered := tuple(form for form in unit.codecs if form.codec == codec))
        else unit
        for unit in stored.problem.units
    )
    solution = solve(replace(stored.problem, units=units))
    return with_placement(stored, solution.placement)


def summary(rows: Sequence[Row]) -> list[str]:
    """Time over storing everything, and bytes kept."""
    lines = []
    stored = {
        row["setting"]: row for row in rows if row["variant"] == _STORED and "error" not in row
    }
    for row in rows:
        base = stored.get(row["setting"])
        if "error" in row or base is None:
            lines.append(
                f"{row['setting']}, {row['variant']}: {row.get('error', 'nothing stored')}"
            )
        elif row is not base:
            added = row["time_ms"] / base["time_ms"] - 1
            kept = row["saved_bytes"] / base["saved_bytes"]
            lines.append(
                f"{row['setting']}, {row['variant']}: {added:+.2%} of the update, {kept:.0%} of the bytes"
            )
    return lines
