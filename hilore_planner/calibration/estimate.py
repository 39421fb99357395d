"""The profile that measurements give: of single classes, then of whole placements."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch
from torch.fx import Node

from hilore_planner.calibration.classes import UnitClass
from hilore_planner.calibration.fit import Observations, beyond_usual
from hilore_planner.calibration.ladders import probe, ranges
from hilore_planner.calibration.model import CalibratedRisk
from hilore_planner.calibration.profile import ClassRisk, RiskProfile
from hilore_planner.calibration.trials import is_telling
from hilore_planner.passes.ops import tensor

if TYPE_CHECKING:
    from hilore_planner.calibration.sampling import Sampling


def summed_risks(sampling: Sampling) -> RiskProfile:
    """Gains and errors of every class; risks add up, and batches are alike."""
    margins = _margins(sampling)
    kept = (_risk(sampling, c, _own_errors, margins[id(c)]) for c in sampling.kept)
    rebuilt = (_risk(sampling, c, _source_errors, margins[id(c)]) for c in sampling.rebuilt)
    return RiskProfile(
        kept=tuple(risk for risk in kept if risk.gains),
        rebuilt=tuple(risk for risk in rebuilt if risk.gains),
        trials=(),
        additivity=1.0,
        margin=1.0,
        shares=tuple(statistics.fmean(places) for places in zip(*sampling.shares, strict=True)),
        batches=sampling.batches,
        codecs=(*sampling.plain, *sampling.tiers),
        torch=str(torch.__version__),
        device=_device_name(sampling.interpreter.joint.primals),
    )


def observations(sampling: Sampling, raw: RiskProfile) -> Observations:
    """The placements that were measured and that show something."""
    model = CalibratedRisk(raw, sampling.graph)
    columns = [0, *map(id, (*raw.kept, *raw.rebuilt))]
    parts, measured, batches = [], [], []
    for trial in sampling.trials:
        by_class = model.by_class(trial.placement)
        if is_telling(sum(by_class.values())) and trial.share:
            parts.append([by_class.get(column, 0.0) for column in columns])
            measured.append(trial.share)
            batches.append(trial.batch)
    return Observations(
        torch.tensor(parts, dtype=torch.float64).reshape(len(measured), len(columns)),
        torch.tensor(measured, dtype=torch.float64),
        torch.tensor(batches),
    )


def fitted_risks(raw: RiskProfile, seen: Observations) -> RiskProfile:
    """The same with gains, and a factor on all, that agree with whole placements."""
    factors, common = seen.factors()
    _, *of_classes = factors.tolist()
    fitted = [
        msgspec.structs.replace(
            risk, gains={codec: factor * gain for codec, gain in risk.gains.items()}
        )
        for risk, factor in zip((*raw.kept, *raw.rebuilt), of_classes, strict=True)
    ]
    kept, rebuilt = fitted[: len(raw.kept)], fitted[len(raw.kept) :]
    return msgspec.structs.replace(raw, kept=tuple(kept), rebuilt=tuple(rebuilt), additivity=common)


def _margins(sampling: Sampling) -> dict[int, float]:
    """By class's identity: what it may exceed others by, beyond what all have in common in a batch."""
    away: dict[int, dict[int, float]] = {}
    by_batch: dict[int, list[float]] = defaultdict(list)
    for unit_class in (*sampling.kept, *sampling.rebuilt):
        logs = sampling.logs(unit_class)
        away[id(unit_class)] = {b: log - statistics.fmean(logs.values()) for b, log in logs.items()}
        for batch, log in away[id(unit_class)].items():
            by_batch[batch].append(log)
    common = {batch: statistics.median(logs) for batch, logs in by_batch.items()}
    return {
        of: beyond_usual([log - common[batch] for batch, log in logs.items()])
        for of, logs in away.items()
    }


def _risk(
    sampling: Sampling,
    unit_class: UnitClass,
    errors: Callable[[Sampling, UnitClass, str], list[float]],
    margin: float,
) -> ClassRisk:
    codecs = sampling.plain
    gains = ((name, sampling.gain(unit_class, name)) for name in codecs)
    return ClassRisk(
        kind=unit_class.kind,
        first_layer=unit_class.first_layer,
        last_layer=unit_class.last_layer,
        units=len(unit_class.units),
        gains={name: gain for name, gain in gains if gain is not None},
        errors={
            name: statistics.fmean(e)
            for name in codecs
            if (e := errors(sampling, unit_class, name))
        },
        erratic=tuple(name for name in codecs if name in sampling.erratic[id(unit_class)]),
        margin=margin,
        places=_places(sampling, unit_class),
    )


def _places(sampling: Sampling, unit_class: UnitClass) -> tuple[float, ...]:
    """Gains of a class's sequences over that of all, by place in the order of exposure; none where not measured."""
    fine = probe(sampling.plain)
    whole = sampling.gain(unit_class, fine)
    if not whole or fine in sampling.erratic[id(unit_class)]:
        return ()
    found = {part: sampling.gain(unit_class, part.kept_by(fine)) for part in ranges(sampling.tiers)}
    # Of sequences that none of the batches exposed nothing is known: those of others may be exposed.
    known = {part: (gain or whole) / whole for part, gain in found.items() if gain is not None}
    count = len(sampling.shares[0]) if sampling.shares and known else 0
    middles = ((place + 0.5) / count for place in range(count))
    return tuple(
        next(gain for part, gain in known.items() if part.has(middle)) for middle in middles
    )


def _own_errors(sampling: Sampling, unit_class: UnitClass, codec: str) -> list[float]:
    found = (sampling.errors.get((unit.name, codec), ()) for unit in unit_class.units)
    return [error for errors in found for error in errors]


def _source_errors(sampling: Sampling, unit_class: UnitClass, codec: str) -> list[float]:
    return [sampling.source_error(unit, codec) for unit in unit_class.units]


def _device_name(primals: Sequence[Node]) -> str:
    devices = {value.device for node in primals if (value := tensor(node)) is not None}
    device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
