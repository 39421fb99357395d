"""``hilore.calibrate``: from an update and sample batches to a risk profile.

Each class of units is made inexact alone, and the gradient's squared relative error over the units' summed errors is
its gain. Placements such as a solver might choose then show how far risks add up and how much batches differ, and
gains are fitted to them: a solver picks what seems to risk least, and of what was measured that is partly luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hilore_planner.calibration.capture import CapturedUpdate
from hilore_planner.calibration.estimate import fitted_risks, observations, summed_risks
from hilore_planner.calibration.fit import upper_factor
from hilore_planner.calibration.measure import MeasuredBatch
from hilore_planner.calibration.profile import RiskProfile
from hilore_planner.calibration.progress import shown
from hilore_planner.calibration.rows import SequenceWeights
from hilore_planner.calibration.sampling import Sampling
from hilore_planner.errors import OptionError
from hilore_planner.grpo.exposure import Exposure
from hilore_planner.options import Options
from hilore_planner.partitioner import CutSettings
from hilore_planner.uncollected import uncollected

Batch = Sequence[Any]
ExposureOf = Callable[[Batch], Exposure]


def calibrate(
    update: Callable[..., Any],
    batches: Iterable[Batch],
    *,
    exposure: ExposureOf | None = None,
    options: Mapping[str, object] | None = None,
    depth_buckets: int = 3,
    perturbed_batches: int = 1,
    progress: bool = True,
) -> RiskProfile:
    """Measure what errors in an update's activations do to its gradient.

    Args:
        update: what will be compiled: batch tensors in, scalar loss out, one graph. Its weights are those at hand,
            and stay as they are.
        batches: sample microbatches, each the arguments of one call, all of one shape. They tell how much batches
            differ: the more, the smaller the margin.
        exposure: the exposure of a batch's rows; None counts all rows alike.
        options: those the update will be compiled with: ``codecs``, ``head`` and ``checkpoint_tags`` matter.
        depth_buckets: into how many ranges of layers each kind of unit is split.
        perturbed_batches: on how many of the batches each class is made inexact alone. With four or more it is seen
            which classes differ much between batches; each takes several times as long as a batch that is not.
        progress: show what is being measured.

    Raises:
        OptionError: no batch, one without a gradient, a number below one, or codecs that are all too coarse.
        RegionError: the update is not one graph with a scalar loss, draws random numbers, or changes its shapes.
    """
    for name, value in (("depth_buckets", depth_buckets), ("perturbed_batches", perturbed_batches)):
        if value < 1:
            raise OptionError(f"{name} is {value}; accepted: 1 or more")
    read = Options.parse(options)
    settings = CutSettings(read.checkpoint_tags, read.head, head_totals=read.head_totals)
    with shown("calibrating", progress) as steps, uncollected():
        captured: CapturedUpdate | None = None
        sampling: Sampling | None = None
        for index, batch in enumerate(batches):
            if captured is None or sampling is None:
                steps.say("tracing")
                captured = CapturedUpdate.of(update, batch, settings)
                sampling = Sampling.of(captured.graph, read.codecs, depth_buckets, steps)
            steps.say(f"batch {index + 1}")
            inputs = captured.inputs(batch)
            weights = None if exposure is None else SequenceWeights.of(exposure(batch))
            measured = MeasuredBatch(sampling.interpreter, inputs, weights)
            sampling.add(measured, is_perturbed=index < perturbed_batches)
            del measured, inputs  # a batch's activations are large: let go before the next
    if sampling is None:
        raise OptionError("batches is empty; accepted: one microbatch or more")
    return profile_of(sampling)


def profile_of(sampling: Sampling) -> RiskProfile:
    """The profile that measurements give."""
    raw = summed_risks(sampling)
    seen = observations(sampling, raw)
    if not len(seen.measured) and raw.kept:
        raise OptionError(
            f"no placement by codecs {', '.join(raw.codecs)} has a gradient error that could be measured and is below "
            "20%; accepted: finer codecs, or batches of a model that is trained"
        )
    if not len(seen.measured):
        return raw
    fitted = fitted_risks(raw, seen)
    ratios = seen.unseen_ratios()
    margin = max(1.0, upper_factor(ratios, len(set(seen.batches.tolist()))))
    return msgspec.structs.replace(fitted, trials=tuple(ratios), margin=margin)
