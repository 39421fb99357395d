"""Where predicted and measured time part: the launches of an update matched with the steps of its plan.

Library calls are matched in order, by operator and sizes. What Inductor wrote between two matched calls is compared
with the fused steps between the same two: it may have fused them otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from hilore_planner.errors import HiloreError

STEPS, LAUNCHES = "steps.json", "launches.json"
"""Files of a ``dump_dir``: what its plans run, as predicted; what one update launched."""
_GENERATED = re.compile(r"^(triton_|(graph_\d+_)?cpp_)")
"""Names of kernels that Inductor wrote."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A piece of a plan's graphs.

    Attributes:
        op: of a kernel of its own; empty for fused work.
        what: its ops and what they make, for people.
        shapes: of what it reads.
        ns: predicted time.
        source: ``file.py:line`` that it comes from; empty where that is not known.
    """

    op: str
    what: str
    shapes: tuple[tuple[int, ...], ...]
    ns: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One call from the compiled code.

    Attributes:
        name: of the kernel that Inductor wrote, or of the library's operator (without ``aten::``).
        shapes: of an operator's inputs.
        ns: on the device, of all kernels that it started.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ns: int

    @property
    def is_generated(self) -> bool:
        """Whether Inductor wrote it."""
        return bool(_GENERATED.match(self.name))


class DumpedSteps(msgspec.Struct, frozen=True):
    """What :data:`STEPS` holds of one region: the steps, and the seconds of making its plan."""

    planning_seconds: float
    compile_seconds: float
    steps: tuple[PricedStep, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Steps that are the same, together.

    Attributes:
        what: the steps; those of one stretch of fused work are joined.
        kind: ``product``, ``attention``, ``fused`` or ``other``.
        count: how often they come.
        predicted_ns, measured_ns: of all of them.
        kernels: names of what was launched for the first.
        source: ``file.py:line`` of the first step that has one.
    """

    what: str
    kind: str
    count: int
    predicted_ns: int
    measured_ns: int
    kernels: tuple[str, ...]
    source: str = ""

    @property
    def more_ns(self) -> int:
        """Time beyond the predicted."""
        return self.measured_ns - self.predicted_ns


def attribute(steps: Sequence[PricedStep], launched: Sequence[Launch]) -> tuple[Difference, ...]:
    """Differences, the largest first; predicted and measured times add up to those of all steps and launches."""
    found: dict[tuple[str, str], Difference] = {}
    for kind, planned, made in _stretches(steps, launched):
        if not planned and not made:
            continue
        what = "; ".join(step.what for step in planned) or "not in the plan"
        before = found.get((kind, what))
        kernels = tuple(dict.fromkeys(launch.name for launch in made))
        found[kind, what] = Difference(
            what,
            kind,
            count=1 + (before.count if before else 0),
            predicted_ns=sum(s.ns for s in planned) + (before.predicted_ns if before else 0),
            measured_ns=sum(x.ns for x in made) + (before.measured_ns if before else 0),
            kernels=before.kernels if before else kernels,
            source=before.source if before else next((s.source for s in planned if s.source), ""),
        )
    return tuple(sorted(found.values(), key=lambda d: -abs(d.more_ns)))


def by_kind(differences: Sequence[Difference]) -> dict[str, tuple[int, int]]:
    """Predicted and measured nanoseconds of each kind."""
    totals: dict[str, tuple[int, int]] = {}
    for found in differences:
        predicted_ns, measured_ns = totals.get(found.kind, (0, 0))
        totals[found.kind] = predicted_ns + found.predicted_ns, measured_ns + found.measured_ns
    return totals


def profiled(folder: Path) -> tuple[Difference, ...]:
    """The differences that a ``dump_dir`` shows once its update was profiled.

    Raises:
        HiloreError: its steps or launches are not there, or damaged.
    """
    steps = [step for region in read_steps(folder) for step in region.steps]
    return attribute(steps, read_launches(folder))


def read_steps(folder: Path) -> tuple[DumpedSteps, ...]:
    """What a ``dump_dir`` says of its regions, in the order of their names.

    Raises:
        HiloreError: there is nothing, or a file is damaged.
    """
    paths = sorted(folder.rglob(STEPS))
    if not paths:
        raise HiloreError(
            f"{folder} has no {STEPS}; give the dump_dir of an update that was compiled anew"
        )
    return tuple(_decoded(path, DumpedSteps) for path in paths)


def read_launches(folder: Path) -> tuple[Launch, ...]:
    """What one update launched, by :func:`hilore_planner.profile`.

    Raises:
        HiloreError: it is not there, or damaged.
    """
    path = folder / LAUNCHES
    if not path.exists():
        raise HiloreError(f"{folder} has no {LAUNCHES}; hilore_planner.profile(...) writes it")
    return _decoded(path, tuple[Launch, ...])


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise HiloreError(f"{path} is damaged: {error}") from error


_Stretch = tuple[str, Sequence[PricedStep], Sequence[Launch]]


def _stretches(steps: Sequence[PricedStep], launched: Sequence[Launch]) -> Iterator[_Stretch]:
    """Matched calls, and what is between them."""
    planned = [index for index, step in enumerate(steps) if step.op]
    made = [index for index, launch in enumerate(launched) if not launch.is_generated]
    matched = _aligned(
        [_identity(steps[i].op, steps[i].shapes) for i in planned],
        [_identity(launched[i].name, launched[i].shapes) for i in made],
    )
    pairs = [(planned[i], made[j]) for i, j in matched]
    for (step_at, launch_at), (step, launch) in pairwise(
        [(-1, -1), *pairs, (len(steps), len(launched))]
    ):
        yield from _between(steps[step_at + 1 : step], launched[launch_at + 1 : launch])
        if step < len(steps):
            yield kind_of_op(steps[step].op), [steps[step]], [launched[launch]]


def _aligned(first: Sequence[object], second: Sequence[object]) -> list[tuple[int, int]]:
    """Places of a longest common subsequence: layers are alike, so that the longest run in common may be another's."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i in reversed(range(len(first))):
        for j in reversed(range(len(second))):
            lengths[i][j] = (
                lengths[i + 1][j + 1] + 1
                if first[i] == second[j]
                else max(lengths[i + 1][j], lengths[i][j + 1])
            )
    i = j = 0
    pairs = []
    while i < len(first) and j < len(second):
        if first[i] == second[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _between(steps: Sequence[PricedStep], launched: Sequence[Launch]) -> Iterator[_Stretch]:
    """Fused work together; calls that have no counterpart one by one."""
    yield "fused", [s for s in steps if not s.op], [x for x in launched if x.is_generated]
    for step in steps:
        if step.op:
            yield kind_of_op(step.op), [step], []
    for launch in launched:
        if not launch.is_generated:
            yield kind_of_op(launch.name), [], [launch]


def kind_of_op(op: str) -> str:
    """``product``, ``attention`` or ``other``, by the name of an operator."""
    if op.endswith("mm"):
        return "product"
    return "attention" if "attention" in op else "other"


def _identity(op: str, shapes: Sequence[tuple[int, ...]]) -> tuple[object, ...]:
    """What an operator is whatever Inductor calls it: a product is its sizes, attention its direction."""
    kind = kind_of_op(op)
    if kind == "product":
        first = 1 if "add" in op else 0  # what is added to
        return kind, *shapes[first : first + 2]
    if kind == "attention":
        return kind, "backward" in op
    return kind, op
