from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from hilore_planner.plan import Figures, PlacementPlan, Provenance, UnitSource
from hilore_planner.solvers.problem import CompressedForm, PlacementProblem, Position, Unit
from tests.plan_cases import plan_of

TEXT = st.text(max_size=8)
COUNT = st.integers(0, 2**53)
RISK = st.floats(0.0, 1e6, allow_subnormal=True)
FIGURES = st.builds(
    Figures,
    peak_bytes=st.none() | COUNT,
    time_ns=st.none() | COUNT,
    gradient_error=st.none() | RISK,
)
SOURCES = st.builds(
    UnitSource,
    module=TEXT,
    role=TEXT,
    op=TEXT,
    source=TEXT,
    shape=st.lists(COUNT, max_size=4).map(tuple),
    dtype=TEXT,
    forced=TEXT,
)
PROVENANCE = st.builds(
    Provenance,
    hilore=TEXT,
    torch=TEXT,
    device=TEXT,
    fingerprint=TEXT,
    costs=TEXT,
    options=st.dictionaries(TEXT, TEXT, max_size=3),
)


@st.composite
def units(draw: st.DrawFn, name: str, before: list[str], first_backward: int) -> Unit:
    made_at = draw(st.integers(0, first_backward - 1))
    backward = st.integers(first_backward, 2 * first_backward - 1)
    return Unit(
        name=name,
        kept_bytes=draw(COUNT),
        rebuilt_bytes=draw(COUNT),
        recompute_ns=draw(COUNT),
        keep_ns=draw(COUNT),
        parents=tuple(draw(st.lists(st.sampled_from(before), unique=True))) if before else (),
        made_at=made_at,
        released_at=draw(st.integers(made_at - 1, first_backward - 1)),
        read_at=tuple(sorted(draw(st.sets(backward, min_size=1, max_size=3)))),
        can_recompute=draw(st.booleans()),
        codecs=tuple(
            CompressedForm(codec, draw(COUNT), draw(COUNT), draw(COUNT), draw(RISK))
            for codec in draw(st.sets(TEXT, max_size=2))
        ),
        inexact_risk=draw(RISK),
        kind=draw(TEXT),
        layer=draw(st.none() | st.integers(0, 200)),
    )


@st.composite
def plans(draw: st.DrawFn) -> PlacementPlan:
    """Plans with any names and figures; every unit is read, so any legal action is a placement."""
    first_backward = draw(st.integers(1, 4))
    names = draw(st.lists(TEXT, max_size=4, unique=True))
    drawn = tuple(
        draw(units(name, names[:index], first_backward)) for index, name in enumerate(names)
    )
    positions = tuple(Position(draw(TEXT), draw(COUNT)) for _ in range(2 * first_backward))
    lossy = {form.codec for unit in drawn for form in unit.codecs if form.risk > 0}
    ladder = tuple(draw(st.permutations(sorted(lossy)))) if draw(st.booleans()) else ()
    drawn = tuple(
        replace(unit, finer_inexact_risks=(unit.inexact_risk / 2,) * (len(ladder) - 1))
        for unit in drawn
    )
    # More than any drawn placement takes: at most eight risks of at most 1e6 each.
    problem = PlacementProblem(drawn, positions, first_backward, 2**60, 3000.0, ladder)
    placement = {
        unit.name: draw(
            st.sampled_from(
                [
                    "store",
                    *(["recompute"] if unit.can_recompute else []),
                    *(f"compress:{form.codec}" for form in unit.codecs),
                ]
            )
        )
        for unit in drawn
    }
    return replace(
        plan_of(problem, placement),
        region=draw(TEXT),
        sources={name: draw(SOURCES) for name in names},
        provenance=draw(PROVENANCE),
        predicted=draw(FIGURES),
        measured=draw(FIGURES),
    )


@given(plans())
def test_every_plan_loads_as_it_was_saved(plan: PlacementPlan) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        assert PlacementPlan.load(path) == plan
        first = path.read_bytes()
        PlacementPlan.load(path).save(path)
        assert path.read_bytes() == first
