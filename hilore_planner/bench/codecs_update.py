"""What keeping everything by a codec adds to a whole update, over storing it.

The update is planned without a cap, which stores what backward reads. Everything stored that a codec takes is then kept
by that codec instead; nothing else differs. Where nothing may be stored that a codec takes, a plan would rather make
again what is pointwise work away from other copies: that is a row of its own, compared with the plan that stores, and
with the same plan whose copies are stored as they are: it makes the same things again, so that only codecs differ. A
profile says which kernels take the time. The plan that stores runs twice, first and last: by how much it differs from
itself is noise.
"""

from __future__ import annotations

import statistics
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
from hilore_planner.solvers.problem import compress_action, kept_codec

_STORED, _AGAIN = "everything stored", "everything stored, again"
_NOTHING, _INSTEAD = "nothing stored, {}", "stored instead of {}"
_TURNS = 10
"""A plan costs less than what the device's clock does from minute to minute: times are compared turn by turn."""
_ANY_ERROR = 0.9
"""Under which every codec is offered; there is no cap to use one for."""
_UNLIMITED = 100.0
"""An error that no placement reaches: what is made again and what is kept is decided by time alone."""


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
    return Variant(
        name,
        "hilore",
        gradient_error=gradient_error,
        costs="roofline",
        attribute=True,
        turns=_TURNS,
    )


def _jobs(setting: Setting, path: Path, codecs: Sequence[str]) -> list[Job]:
    """None where there is no plan that stores."""
    if not path.exists():
        return []
    stored = PlacementPlan.load(path)
    plans = {f"everything by {codec}": everything_by(stored, codec) for codec in codecs}
    for codec in codecs:
        nothing = nothing_stored(stored, codec)
        plans |= {
            _NOTHING.format(codec): nothing,
            _INSTEAD.format(codec): copies_stored(nothing, codec),
        }
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
    solution = solve(replace(stored.problem, units=units, gradient_error=_UNLIMITED))
    return with_placement(stored, solution.placement)


def copies_stored(nothing: PlacementPlan, codec: str) -> PlacementPlan:
    """The same plan with what ``codec`` keeps stored instead; what is made again still is."""
    placement = {
        name: STORE if kept_codec(action) == codec else action
        for name, action in nothing.solution.placement.items()
    }
    return with_placement(nothing, placement)


def summary(rows: Sequence[Row]) -> list[str]:
    """Time over storing everything and bytes kept, and time over the same plan with its copies stored."""
    found = {(row["setting"], row["variant"]): row for row in rows if "error" not in row}
    instead = {_NOTHING.format(codec): _INSTEAD.format(codec) for codec in LOSSY}
    lines = []
    for row in rows:
        setting, variant = row["setting"], row["variant"]
        base = found.get((setting, _STORED))
        if "error" in row or base is None:
            lines.append(f"{setting}, {variant}: {row.get('error', 'nothing stored')}")
        elif row is not base:
            kept = row["saved_bytes"] / base["saved_bytes"]
            line = (
                f"{setting}, {variant}: {_added(row, base)} of the update, {kept:.0%} of the bytes"
            )
            same = found.get((setting, instead.get(variant)))
            lines.append(f"{line}; {_added(row, same)} over the same stored" if same else line)
    return lines


def _added(row: Row, base: Row) -> str:
    """The median over turns of how much longer an update took than another in the same turn."""
    turns = zip(row["turn_times_ms"], base["turn_times_ms"], strict=True)
    return f"{statistics.median(mine / its for mine, its in turns) - 1:+.2%}"
