"""Small random problems: interior units, early and late demand, codecs, forced units."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from hilore_planner.solvers import CompressedForm, PlacementProblem, Position, Unit

_SIZE = st.integers(0, 12)
_TIME = st.integers(0, 9)
LADDERS: list[tuple[str, ...]] = [(), ("int8", "int4"), ("int4", "int8")]


def on_ladder(unit: Unit, ladder: tuple[str, ...], is_steep: bool) -> Unit:
    """The unit with a charge for each codec of the ladder; ``is_steep``: half a risk for the finer."""
    share = 0.5 if is_steep else 1.0
    return replace(unit, finer_inexact_risks=(share * unit.inexact_risk,) * (len(ladder) - 1))


@st.composite
def forms(draw: st.DrawFn, kept_bytes: int) -> tuple[CompressedForm, ...]:
    codecs = draw(
        st.lists(st.sampled_from(["int8", "int4", "bits"]), unique=True, min_size=1, max_size=2)
    )
    return tuple(
        CompressedForm(
            codec=codec,
            kept_bytes=draw(st.integers(0, kept_bytes // 2)),
            encode_ns=draw(st.integers(0, 2)),
            decode_ns=draw(st.integers(0, 2)),
            # Quarters, so that sums are exact and never within rounding of a budget.
            risk=0.0 if codec == "bits" else draw(st.integers(1, 4)) / 4,
        )
        for codec in codecs
    )


@st.composite
def units(draw: st.DrawFn, index: int, forward: int, backward: int, most_forms: bool) -> Unit:
    made_at = draw(st.integers(0, max(forward - 1, 0)))
    reads = draw(st.lists(st.integers(forward, forward + backward - 1), unique=True, max_size=2))
    parents = draw(
        st.lists(st.integers(max(index - 4, 0), index - 1), unique=True, max_size=3)
        if index
        else st.just([])
    )
    kept_bytes = draw(_SIZE)
    free_to = draw(st.sampled_from(["both", "both", "both", "store", "recompute"]))
    return Unit(
        name=f"u{index}",
        kept_bytes=kept_bytes,
        rebuilt_bytes=draw(st.sampled_from([0, kept_bytes, kept_bytes, draw(_SIZE)])),
        recompute_ns=draw(_TIME),
        keep_ns=draw(st.sampled_from([0, 0, 1, 3])),
        parents=tuple(f"u{parent}" for parent in sorted(parents)),
        made_at=made_at,
        released_at=draw(st.integers(made_at, max(forward - 1, made_at))),
        read_at=tuple(sorted(reads)),
        can_store=free_to != "recompute",
        can_recompute=free_to != "store",
        codecs=draw(forms(kept_bytes)) if most_forms else (),
        inexact_risk=draw(st.integers(0, 2)) / 4,
        kind=draw(st.sampled_from(["", "a", "b"])),
        layer=draw(st.sampled_from([None, 0, 1, 2])),
    )


@st.composite
def problems(draw: st.DrawFn, *, most_units: int = 7) -> PlacementProblem:
    """Problems of up to ``most_units`` units; the cap is drawn around where it binds."""
    with_forms = draw(st.booleans())
    count = draw(st.integers(1, min(most_units, 5) if with_forms else most_units))
    forward, backward = draw(st.integers(0, 3)), draw(st.integers(1, 6))
    drawn = tuple(draw(units(i, forward, backward, with_forms)) for i in range(count))
    total = sum(unit.kept_bytes for unit in drawn)
    ladder = draw(st.sampled_from(LADDERS)) if with_forms else ()
    return PlacementProblem(
        units=tuple(on_ladder(unit, ladder, draw(st.booleans())) for unit in drawn),
        positions=tuple(
            Position(label=f"p{k}", fixed_bytes=draw(st.integers(0, 6)))
            for k in range(forward + backward)
        ),
        first_backward=forward,
        memory_cap_bytes=draw(st.integers(total // 4, total + 2)),
        # Budgets between the quarters that risks add up to.
        gradient_error=draw(st.sampled_from([0.0, 0.6, 0.8, 1.1])) if with_forms else 0.0,
        ladder=ladder,
    )


@st.composite
def layered_problems(draw: st.DrawFn) -> PlacementProblem:
    """One small random layer repeated: each reads the last unit of the layer below."""
    layers, width = draw(st.sampled_from([(2, 3), (3, 2), (4, 2)]))
    steps = draw(st.integers(1, 2))
    sizes = [(draw(st.integers(1, 9)), draw(_TIME)) for _ in range(width)]
    wired = [draw(st.booleans()) for _ in range(width)]
    reads = [draw(st.lists(st.integers(0, steps), unique=True, max_size=2)) for _ in range(width)]
    rebuilt_share = draw(st.sampled_from([0, 1, 1]))
    drawn: list[Unit] = []
    for layer in range(layers):
        turn = layers + (layers - 1 - layer) * steps
        for part, (size, time_ns) in enumerate(sizes):
            below = f"{width - 1}.{layer - 1}"
            parents = [below] if layer and (part == 0 or wired[part]) else []
            parents += [f"{part - 1}.{layer}"] if part else []
            drawn.append(
                Unit(
                    name=f"{part}.{layer}",
                    kept_bytes=size,
                    rebuilt_bytes=size * rebuilt_share,
                    recompute_ns=time_ns,
                    keep_ns=0,
                    parents=tuple(parents),
                    made_at=layer,
                    released_at=layer,
                    read_at=tuple(sorted(turn + step for step in reads[part])),
                    can_store=True,
                    can_recompute=bool(parents),
                    kind=str(part),
                    layer=layer,
                )
            )
    total = sum(unit.kept_bytes for unit in drawn)
    return PlacementProblem(
        units=tuple(drawn),
        positions=tuple(
            Position(f"p{k}", fixed_bytes=draw(st.integers(0, 3)))
            for k in range(layers + layers * steps + 1)
        ),
        first_backward=layers,
        memory_cap_bytes=draw(st.integers(total // 4, total)),
    )


@st.composite
def interior_problems(draw: st.DrawFn) -> PlacementProblem:
    """Units of which backward reads the last early and one, two or three steps before it, late."""
    count = 6
    late = [3, *draw(st.sampled_from([[], [], [2], [4]]))]
    reads = {count - 1: (1,), **{u: (draw(st.integers(3, 5)),) for u in late}}
    drawn = []
    for u in range(count):
        kept_bytes = draw(st.integers(1, 9))
        others = draw(st.sets(st.integers(max(u - 3, 0), max(u - 1, 0)), max_size=2))
        parents = {u - 1, *others} if u > 1 else ()
        drawn.append(
            Unit(
                name=f"u{u}",
                kept_bytes=kept_bytes,
                rebuilt_bytes=draw(st.sampled_from([kept_bytes, kept_bytes, draw(_SIZE)])),
                recompute_ns=draw(_TIME),
                keep_ns=0,
                parents=tuple(f"u{parent}" for parent in sorted(parents)),
                made_at=0,
                released_at=0,
                read_at=reads.get(u, ()),
                codecs=draw(forms(kept_bytes)) if draw(st.integers(0, 3)) == 0 else (),
            )
        )
    return PlacementProblem(
        units=tuple(drawn),
        positions=tuple(Position(f"p{k}", 0) for k in range(6)),
        first_backward=1,
        memory_cap_bytes=draw(st.integers(0, 30)),
        gradient_error=2.0,
    )
