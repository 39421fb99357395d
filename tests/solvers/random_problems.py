"""Random problems of up to eight units, from a seed: single units, and one layer repeated."""

from __future__ import annotations

import random
from math import prod

from hilore_planner.solvers import CompressedForm, PlacementProblem, Position, Unit
from tests.solvers.strategies import LADDERS, on_ladder

_MOST_PLACEMENTS = 1500
"""Problems with more are drawn again: each of them is replayed."""


def random_problem(seed: int) -> PlacementProblem:
    """A problem whose placements can all be tried; its cap lies around where it binds."""
    rng = random.Random(seed)
    while True:
        problem = _layered(rng) if rng.random() < 0.5 else _single(rng)
        if prod(_choices(unit) for unit in problem.units) <= _MOST_PLACEMENTS:
            return problem


def _choices(unit: Unit) -> int:
    return unit.can_store + unit.can_recompute + len(unit.codecs) + (not unit.read_at)


def _single(rng: random.Random) -> PlacementProblem:
    forward, backward = rng.randint(0, 3), rng.randint(1, 6)
    lossy = rng.random() < 0.6
    units: list[Unit] = []
    for index in range(rng.randint(1, 8)):
        parents = rng.sample(range(max(index - 4, 0), index), k=min(index, rng.randint(0, 2)))
        reads = rng.sample(range(forward, forward + backward), k=min(backward, rng.randint(0, 2)))
        size = rng.randint(0, 12)
        made_at = rng.randint(0, max(forward - 1, 0))
        free_to = rng.choice(["both", "both", "both", "store", "recompute"])
        units.append(
            Unit(
                name=f"u{index}",
                kept_bytes=size,
                rebuilt_bytes=rng.choice([0, size, size, rng.randint(0, 12)]),
                recompute_ns=rng.randint(0, 9),
                keep_ns=rng.choice([0, 0, 1, 3]),
                parents=tuple(f"u{parent}" for parent in sorted(parents)),
                made_at=made_at,
                released_at=rng.randint(made_at - 1, max(forward - 1, made_at)),
                read_at=tuple(sorted(reads)),
                can_store=free_to != "recompute",
                can_recompute=free_to != "store",
                codecs=_forms(rng, size) if lossy and rng.random() < 0.6 else (),
                inexact_risk=rng.randint(0, 2) / 4,
                kind=rng.choice(["", "a", "b"]),
                layer=rng.choice([None, 0, 1, 2]),
            )
        )
    return _problem(rng, units, forward, backward)


def _layered(rng: random.Random) -> PlacementProblem:
    """Equal layers, each reading the last unit of the layer below."""
    layers, width = rng.choice([(2, 2), (2, 3), (3, 2), (4, 2), (2, 4), (3, 1), (6, 1)])
    steps, lossy = rng.randint(1, 2), rng.random() < 0.7
    parts = [_part(rng, part, lossy, steps) for part in range(width)]
    units: list[Unit] = []
    for layer in range(layers):
        turn = layers + (layers - 1 - layer) * steps
        for part, (template, reads, is_wired) in enumerate(parts):
            parents = [f"{width - 1}.{layer - 1}"] if layer and (part == 0 or is_wired) else []
            parents += [f"{part - 1}.{layer}"] if part else []
            units.append(
                Unit(
                    name=f"{part}.{layer}",
                    kept_bytes=template.kept_bytes,
                    rebuilt_bytes=template.rebuilt_bytes,
                    recompute_ns=template.recompute_ns,
                    keep_ns=template.keep_ns,
                    parents=tuple(parents),
                    made_at=layer,
                    released_at=layer,
                    read_at=tuple(turn + read for read in reads),
                    can_recompute=bool(parents),
                    codecs=template.codecs,
                    inexact_risk=template.inexact_risk,
                    kind=str(part),
                    layer=layer,
                )
            )
    return _problem(rng, units, layers, layers * steps + 1)


def _part(
    rng: random.Random, part: int, lossy: bool, steps: int
) -> tuple[Unit, tuple[int, ...], bool]:
    """What a unit is like in every layer, its reads from its layer's turn, and if it reads below."""
    size = rng.randint(1, 9)
    unit = Unit(
        name=str(part),
        kept_bytes=size,
        rebuilt_bytes=size * rng.choice([0, 1, 1]),
        recompute_ns=rng.randint(0, 9),
        keep_ns=rng.choice([0, 0, 2]),
        parents=(),
        made_at=0,
        released_at=0,
        read_at=(),
        codecs=_forms(rng, size) if lossy and rng.random() < 0.7 else (),
        inexact_risk=rng.choice([0.0, 0.25, 0.25, 2.0]),
    )
    reads = rng.sample(range(steps + 1), k=rng.randint(0, 2 if steps > 1 else 1))
    return unit, tuple(sorted(reads)), rng.random() < 0.5


def _forms(rng: random.Random, size: int) -> tuple[CompressedForm, ...]:
    return tuple(
        CompressedForm(
            codec=codec,
            kept_bytes=rng.randint(0, max(size // 2, 1)),
            encode_ns=rng.randint(0, 2),
            decode_ns=rng.randint(0, 2),
            # Quarters, so that sums are exact and never within rounding of a budget.
            risk=0.0 if codec == "bits" else rng.randint(1, 4) / 4,
        )
        for codec in rng.sample(["int8", "int4", "bits"], k=rng.randint(1, 2))
    )


def _problem(
    rng: random.Random, units: list[Unit], forward: int, backward: int
) -> PlacementProblem:
    total = sum(unit.kept_bytes for unit in units)
    ladder = rng.choice(LADDERS)
    steep = {unit.kind: rng.random() < 0.5 for unit in units}
    return PlacementProblem(
        units=tuple(on_ladder(unit, ladder, steep[unit.kind]) for unit in units),
        positions=tuple(Position(f"p{k}", rng.randint(0, 6)) for k in range(forward + backward)),
        first_backward=forward,
        memory_cap_bytes=rng.randint(total // 4, total + 2),
        # Budgets between the quarters that risks add up to.
        gradient_error=rng.choice([0.0, 0.6, 0.8, 1.1]),
        ladder=ladder,
    )
