"""What the fixed bytes of a region's positions are made of, recorded for those who read its plan."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hilore_planner.passes import compat
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import op_name, tensor
from hilore_planner.passes.schedule import Schedule, held_values
from hilore_planner.passes.units import SMALL_BYTES
from hilore_planner.plan import FixedPart
from hilore_planner.region import Surroundings


def fixed_parts(
    joint: JointGraph, schedule: Schedule, surroundings: Surroundings
) -> tuple[FixedPart, ...]:
    """The parts of the base, and the values from 64 KiB on that the program itself holds."""
    end = len(schedule.steps) - 1
    base = (
        FixedPart(what, size, 0, end) for what, size in surroundings.base_parts if size and end >= 0
    )
    return (*base, *_held_parts(joint, schedule))


def _held_parts(joint: JointGraph, schedule: Schedule) -> Iterator[FixedPart]:
    for held in held_values(joint, schedule):
        maker, size = held.storage.maker, held.storage.bytes
        value = tensor(maker)
        if size >= SMALL_BYTES and value is not None:
            op = "" if maker.op == "placeholder" else op_name(maker)
            line = source_line(maker)
            yield FixedPart(
                what=held.role,
                size_bytes=size,
                first=held.first,
                last=held.last,
                source=f"{op} ({line})" if line else op,
                shape=tuple(compat.hint(size) for size in value.shape),
            )


def vocabulary_size(joint: JointGraph) -> int:
    """Rows of the largest table that is looked up by index; 0 where there is none."""
    tables = (
        tensor(node.args[0])  # type: ignore[arg-type]
        for node in joint.forward
        if node.target is torch.ops.aten.embedding.default
    )
    return max((compat.hint(table.shape[0]) for table in tables if table is not None), default=0)
