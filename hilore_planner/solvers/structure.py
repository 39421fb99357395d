"""What is known of a problem before any decision: indices, readers and ranges of demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hilore_planner.solvers.heirs import Heir, heirs_of
from hilore_planner.solvers.problem import (
    NEVER,
    CompressedForm,
    PlacementProblem,
    PositionIndex,
)


@dataclass(frozen=True, slots=True)
class Structure:
    """A problem by index; tuples are over its units, parents first.

    ``demand[u]`` and ``last[u]`` are those of ``problem``: they depend on the placement, and the
    ranges here hold for every placement that has the unit at hand.
    """

    problem: PlacementProblem
    parents: tuple[tuple[int, ...], ...]
    rebuilders: tuple[tuple[int, ...], ...]
    """Units that would read it if they were recomputed: those that can be, and can be needed."""
    earliest: tuple[PositionIndex, ...]
    """Least demand any placement gives it; NEVER where nothing can need it."""
    latest: tuple[PositionIndex, ...]
    """Greatest demand any placement gives it."""
    surely_last: tuple[PositionIndex, ...]
    """Every placement needs it at least until here."""
    possibly_last: tuple[PositionIndex, ...]
    """No placement needs it after this."""
    forms: tuple[tuple[CompressedForm, ...], ...]
    """The compressed forms whose risk alone is within the budget, and that no other is better than;
    units that have the same share one tuple."""
    risk_budget: float
    tainted: tuple[bool, ...]
    """Whether the unit can be inexact at all."""

    kinds: dict[str, tuple[int, ...]]
    """Units of each kind that can be needed."""
    heirs: tuple[tuple[Heir, ...], ...]
    """By unit."""
    fences: Mapping[int, PositionIndex] = field(default_factory=dict)
    """By unit, a position by which it is not rebuilt; the ranges hold for placements that keep to that."""

    def alike(self, unit: int) -> tuple[int, ...]:
        """The units of the same kind, itself among them; only itself where it has none."""
        return self.kinds.get(self.problem.units[unit].kind, (unit,))

    def fenced(self, layers: int) -> Structure:
        """The structure of the placements that rebuild at most ``layers`` layers ahead."""
        fences = self.fences_ahead(layers)
        earliest, surely_last = list(self.earliest), list(self.surely_last)
        for u in reversed(range(len(earliest))):
            if self.needed(u):
                reads = self.problem.units[u].read_at
                soonest = min([*(earliest[v] for v in self.rebuilders[u]), *reads[:1]])
                earliest[u] = max(soonest, fences.get(u, NEVER) + 1)
                surely_last[u] = reads[-1] if reads else soonest
        return replace(
            self, earliest=tuple(earliest), surely_last=tuple(surely_last), fences=fences
        )

    def entries(self) -> tuple[int, ...]:
        """Units that one with an earlier fence, or none, is recomputed from.

        Where some are rebuilt before their fences, one of these is.
        """
        return tuple(
            u
            for u, fence in self.fences.items()
            if any(self.fences.get(v, NEVER) < fence for v in self.rebuilders[u])
        )

    def fences_ahead(self, layers: int) -> dict[int, PositionIndex]:
        """Positions that keep units from being demanded more than ``layers`` layers ahead.

        Backward goes through layers from the last to the first. A layer's turn starts at the first
        position that reads one of its units; a unit's fence is right before the turn of the layer
        that is ``layers`` above its own. Units without a layer have none.
        """
        starts: dict[int, PositionIndex] = {}
        for u, unit in enumerate(self.problem.units):
            if unit.layer is not None and self.needed(u):
                starts[unit.layer] = min(starts.get(unit.layer, self.latest[u]), self.latest[u])
        order = sorted(starts)
        above = {
            layer: starts[order[min(rank + layers, len(order) - 1)]]
            for rank, layer in enumerate(order)
        }
        fences: dict[int, PositionIndex] = {}
        for u, unit in enumerate(self.problem.units):
            if unit.layer is not None and self.needed(u):
                fence = min(above[unit.layer], self.latest[u]) - 1
                if fence >= self.earliest[u]:
                    fences[u] = fence
        return fences

    def needed(self, unit: int) -> bool:
        """Whether some placement needs the unit."""
        return self.latest[unit] != NEVER


def analyse(problem: PlacementProblem) -> Structure:
    """Derive the structure of ``problem``; linear in units and edges."""
    units = problem.units
    index = {unit.name: i for i, unit in enumerate(units)}
    parents = tuple(
        tuple(dict.fromkeys(index[parent] for parent in unit.parents)) for unit in units
    )
    budget = problem.gradient_error**2
    forms = _forms(problem, budget)
    count = len(units)
    rebuilders: list[list[int]] = [[] for _ in units]
    earliest, latest = [NEVER] * count, [NEVER] * count
    surely_last, possibly_last = [NEVER] * count, [NEVER] * count
    for u in reversed(range(count)):
        reads = units[u].read_at
        soonest = [earliest[v] for v in rebuilders[u]] + list(reads[:1])
        if not soonest:
            continue
        furthest = [latest[v] for v in rebuilders[u]]
        earliest[u] = min(soonest)
        latest[u] = reads[0] if reads else max(furthest)
        surely_last[u] = reads[-1] if reads else earliest[u]
        possibly_last[u] = max([*furthest, *reads[-1:]])
        if units[u].can_recompute:
            for p in parents[u]:
                rebuilders[p].append(u)
    return Structure(
        problem=problem,
        parents=parents,
        rebuilders=tuple(map(tuple, rebuilders)),
        earliest=tuple(earliest),
        latest=tuple(latest),
        surely_last=tuple(surely_last),
        possibly_last=tuple(possibly_last),
        forms=forms,
        risk_budget=budget,
        tainted=_tainted(problem, parents, forms),
        kinds=_kinds(problem, latest),
        heirs=heirs_of(units, parents, rebuilders, latest),
    )


def _forms(problem: PlacementProblem, budget: float) -> tuple[tuple[CompressedForm, ...], ...]:
    known: dict[tuple[CompressedForm, ...], tuple[CompressedForm, ...]] = {}
    for unit in problem.units:
        if unit.codecs not in known:
            open_forms = [form for form in unit.codecs if form.risk <= budget]
            best = tuple(form for form in open_forms if not _is_beaten(form, open_forms))
            known[unit.codecs] = best
    return tuple(known[unit.codecs] for unit in problem.units)


def _is_beaten(form: CompressedForm, others: list[CompressedForm]) -> bool:
    """Whether another form is as good in every way, and better in one or listed before."""

    def worth(of: CompressedForm) -> tuple[float, ...]:
        return (of.kept_bytes, of.encode_ns + of.decode_ns, of.risk)

    own = worth(form)
    return any(
        all(theirs <= mine for theirs, mine in zip(worth(other), own, strict=True))
        and (worth(other) != own or others.index(other) < others.index(form))
        for other in others
    )


def _tainted(
    problem: PlacementProblem,
    parents: tuple[tuple[int, ...], ...],
    forms: tuple[tuple[CompressedForm, ...], ...],
) -> tuple[bool, ...]:
    tainted: list[bool] = []
    for u, unit in enumerate(problem.units):
        lossy = any(form.risk > 0 for form in forms[u])
        tainted.append(lossy or (unit.can_recompute and any(tainted[p] for p in parents[u])))
    return tuple(tainted)


def _kinds(problem: PlacementProblem, latest: list[int]) -> dict[str, tuple[int, ...]]:
    groups: dict[str, list[int]] = {}
    for u, unit in enumerate(problem.units):
        if unit.kind and latest[u] != NEVER:
            groups.setdefault(unit.kind, []).append(u)
    return {kind: tuple(group) for kind, group in groups.items()}
