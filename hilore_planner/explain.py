"""Who holds the memory at a plan's peak, and what would lower it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hilore_planner.advice import Advice
from hilore_planner.errors import PlacementError
from hilore_planner.plan import PlacementPlan, unit_label
from hilore_planner.solvers.problem import Unit, compress_action
from hilore_planner.solvers.verify import Replay, Span, replay

State = Literal["fixed", "stored", "compressed", "rebuilt"]

_VOCABULARY = ", vocabulary-sized"
_STATES_OF_TRAINING = ("weights", "gradients", "earlier gradients", "optimizer state")
_WORTH_ADVICE = 0.15
"""Share of the peak."""

_LEVERS_TRIED = 8
"""Kinds of units tried, the largest at the peak; each takes a replay of the whole plan."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Units of one kind in one state, together, at the peak."""

    state: State
    what: str
    count: int
    alive_bytes: int


@dataclass(frozen=True, slots=True)
class Lever:
    """Another action for all units of one kind, and what the plan's figures become."""

    what: str
    count: int
    before: str
    after: str
    peak_change_bytes: int
    time_change_ns: int
    risk: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The peak position, who holds it (largest first) and what lowers it (most first).

    ``advice`` is for what slows the update whatever is planned, the costliest first, then for what no placement
    lowers, the largest first.
    """

    position: int
    peak_bytes: int
    owners: tuple[Owner, ...]
    levers: tuple[Lever, ...]
    advice: tuple[Advice, ...] = ()


def explain(plan: PlacementPlan) -> Explanation:
    """Attributes the peak of a plan's program and tries single changes to it.

    A change that would exceed the plan's budget for the gradient's error is not offered.

    Raises:
        InfeasibleError: the plan has no placement.
    """
    plan.require_feasible()
    found = replay(plan.problem, plan.solution.placement)
    owners = _owners(plan, found)
    return Explanation(
        position=found.peak_position,
        peak_bytes=found.peak_bytes,
        owners=owners,
        levers=_levers(plan, found),
        advice=(*plan.advice, *_advice(owners, found.peak_bytes, is_cut=plan.head.chunks > 0)),
    )


def _labels(plan: PlacementPlan) -> dict[str, str]:
    """Where each unit comes from and the op that makes it, the same in every layer."""
    labels = {}
    for unit in plan.problem.units:
        source = plan.sources[unit.name]
        label = f"{unit_label(unit, source)} {source.op}" if unit.layer is not None else unit.name
        labels[unit.name] = label + _of_vocabulary(plan, source.shape)
    return labels


def _alive(found: Replay) -> Iterator[Span]:
    for span in found.spans:
        if span.first <= found.peak_position <= span.last:
            yield span


def _owners(plan: PlacementPlan, found: Replay) -> tuple[Owner, ...]:
    labels = _labels(plan)
    held: dict[tuple[State, str], list[int]] = {}
    for span in _alive(found):
        key = (_state(plan, span), labels[span.unit])
        held.setdefault(key, []).append(span.size_bytes)
    owners = [Owner(state, what, len(sizes), sum(sizes)) for (state, what), sizes in held.items()]
    if plan.problem.positions:
        owners += _fixed_owners(plan, found.peak_position)
    return tuple(sorted(owners, key=lambda owner: -owner.alive_bytes))


def _of_vocabulary(plan: PlacementPlan, shape: Sequence[int]) -> str:
    return _VOCABULARY if plan.vocabulary and plan.vocabulary in shape[-1:] else ""


def _fixed_owners(plan: PlacementPlan, position: int) -> Iterator[Owner]:
    """What is alive whatever is decided; the last owner is what its parts do not account for.

    That may be less than nothing: kernels write over their inputs, and fusion leaves values out.
    """
    fixed_bytes = plan.problem.positions[position].fixed_bytes
    held: dict[str, list[int]] = {}
    for part in plan.fixed_parts:
        if part.first <= position <= part.last:
            vocabulary = _of_vocabulary(plan, part.shape)
            named = f": {part.source}" if vocabulary and part.source else ""
            what = f"{part.what}{named}{vocabulary}"
            held.setdefault(what, []).append(part.size_bytes)
    for what, sizes in held.items():
        yield Owner("fixed", what, len(sizes), sum(sizes))
    rest = fixed_bytes - sum(map(sum, held.values()))
    if rest:
        yield Owner("fixed", "other temporaries, less what is reused" if held else "", 0, rest)


def _advice(owners: Sequence[Owner], peak_bytes: int, *, is_cut: bool) -> Iterator[Advice]:
    """What to change in the program where no placement helps; of a head that is cut, the plan chose how finely."""
    for owner in owners:
        if owner.alive_bytes < _WORTH_ADVICE * peak_bytes:
            continue
        what, remedy = owner.what, ""
        if owner.what.startswith("outputs") and owner.what.endswith(_VOCABULARY):
            what = "logits are returned to the caller"
            remedy = (
                "they and their gradient are alive while the backward runs; compute log-probabilities inside the "
                "compiled function and return those"
            )
        elif owner.what.endswith(_VOCABULARY) and not (is_cut or owner.what.startswith("incoming")):
            remedy = (
                "take the loss of the logits inside the compiled function, so that the head can be cut into chunks "
                "of rows (option head)"
            )
        elif owner.what in _STATES_OF_TRAINING:
            remedy = "shard them over ranks, train adapters, or hold them in a smaller dtype"
        if remedy:
            yield Advice(what, "", owner.count, owner.alive_bytes, None, remedy)


def _state(plan: PlacementPlan, span: Span) -> State:
    """A compressed unit has two spans: a copy from forward, and its decoded value in backward."""
    action = plan.solution.placement[span.unit]
    if action == "store":
        return "stored"
    if action != "recompute" and span.first < plan.problem.first_backward:
        return "compressed"
    return "rebuilt"


def _levers(plan: PlacementPlan, found: Replay) -> tuple[Lever, ...]:
    units = {unit.name: unit for unit in plan.problem.units}
    labels = _labels(plan)
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for span in _alive(found):
        action = plan.solution.placement[span.unit]
        if action != "recompute":
            group = groups.setdefault((labels[span.unit], action), {})
            group[span.unit] = group.get(span.unit, 0) + span.size_bytes
    largest = sorted(groups.items(), key=lambda item: -sum(item[1].values()))[:_LEVERS_TRIED]
    levers = []
    for (what, before), group in largest:
        members = [units[name] for name in group]
        for after in _smaller_actions(members, before):
            lever = _try(plan, found, what, members, before, after)
            if lever is not None and lever.peak_change_bytes < 0:
                levers.append(lever)
    return tuple(sorted(levers, key=lambda lever: (lever.peak_change_bytes, lever.time_change_ns)))


def _smaller_actions(members: list[Unit], before: str) -> list[str]:
    """Actions open to all members, other than the one they have."""
    shared = set.intersection(*({form.codec for form in unit.codecs} for unit in members))
    actions = [compress_action(codec) for codec in sorted(shared)]
    if all(unit.can_recompute for unit in members):
        actions.append("recompute")
    return [action for action in actions if action != before]


def _try(
    plan: PlacementPlan, found: Replay, what: str, members: list[Unit], before: str, after: str
) -> Lever | None:
    placement = plan.solution.placement | {unit.name: after for unit in members}
    try:
        changed = replay(plan.problem, placement)
    except PlacementError:
        return None  # Recomputing it would read a unit that this plan does not have at hand.
    if changed.risk > max(found.risk, plan.problem.gradient_error**2):
        return None
    return Lever(
        what=what,
        count=len(members),
        before=before,
        after=after,
        peak_change_bytes=changed.peak_bytes - found.peak_bytes,
        time_change_ns=changed.time_ns - found.time_ns,
        risk=changed.risk,
    )
