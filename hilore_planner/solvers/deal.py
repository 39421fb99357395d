"""Dealing the folded program's counts out to the layers.

Any way to do so has the same time, and mostly the same memory. What differs is what is recomputed
from a copy, and so inexact; the folded program counts on as little of that as can be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hilore_planner.solvers.fold import Folded
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, STORE, lossy_actions

_RANKS: tuple[Mapping[str, int], ...] = ({STORE: 1, RECOMPUTE: 2}, {STORE: 0, RECOMPUTE: 2})
"""Where actions come in a hand: copies first, or after what is stored."""


@dataclass(frozen=True, slots=True)
class _Hand:
    """Units, ascending, and how many of them get each action."""

    units: Sequence[int]
    counts: Mapping[str, int]


def dealt(folded: Folded, values: Sequence[float]) -> Iterator[dict[str, str]]:
    """Actions by unit that have the counts in ``values``, one for each way to deal them out.

    The first two are as the program has it: nothing is pooled.
    """
    structure = folded.choices.variables.structure
    hands = [
        _Hand(members, {a: round(values[column]) for a, column in actions.items()})
        for first, members in folded.members.items()
        for actions in [folded.choices.variables.actions[first]]
    ]
    pooled = _pooled(structure, hands)
    for held in [hands] if len(pooled) == len(hands) else [hands, pooled]:
        for rank in _RANKS if any(structure.tainted) else _RANKS[:1]:
            for is_reversed in (True, False):
                table = _Table(structure)
                for hand in held:
                    order = _ordered(hand.counts, rank)
                    units = hand.units[::-1] if is_reversed else hand.units
                    table.deal(units, [a for a in order for _ in range(hand.counts[a])])
                yield table.choice()


def _pooled(structure: Structure, hands: Sequence[_Hand]) -> list[_Hand]:
    """Hands of classes that only lie apart as one.

    Where peak rows tell classes apart, the program minds little which of them recomputes, but
    positions without a row may.
    """
    pools: dict[Hashable, list[_Hand]] = defaultdict(list)
    for hand in hands:
        unit = structure.problem.units[hand.units[0]]
        sizes = (unit.kept_bytes, unit.rebuilt_bytes, unit.keep_ns, unit.recompute_ns)
        alike = (unit.kind or unit.name, bool(unit.read_at), sizes, tuple(hand.counts))
        pools[(*alike, id(structure.forms[hand.units[0]]))].append(hand)
    return [
        _Hand(
            sorted(u for hand in pool for u in hand.units),
            {action: sum(hand.counts[action] for hand in pool) for action in pool[0].counts},
        )
        for pool in pools.values()
    ]


def _ordered(actions: Mapping[str, int], rank: Mapping[str, int]) -> list[str]:
    copies_rank = 1 - rank[STORE]
    return sorted(actions, key=lambda action: rank.get(action, copies_rank))


class _Table:
    """What has been dealt so far."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._actions: dict[int, str] = {}
        self._absent: set[int] = set()
        self._inexact: set[int] = set()

    def choice(self) -> dict[str, str]:
        """Actions by name."""
        units = self._structure.problem.units
        return {units[u].name: action for u, action in self._actions.items()}

    def deal(self, members: Sequence[int], hand: Sequence[str]) -> None:
        """Give the members of a class their actions: the first of them stay absent, if any do.

        Recomputing goes to the end, so that it lies with what it is recomputed from; but members
        whose parents are inexact or absent come early, and those that another is recomputed from
        late.
        """
        first_dealt = len(members) - len(hand)
        ordered = sorted(members, key=self._lateness)
        self._absent.update(ordered[:first_dealt])
        for u, action in zip(ordered[first_dealt:], hand, strict=True):
            self._actions[u] = action
            from_inexact = any(p in self._inexact for p in self._structure.parents[u])
            if action in lossy_actions(self._structure, u) or (
                action == RECOMPUTE and from_inexact
            ):
                self._inexact.add(u)

    def _lateness(self, u: int) -> int:
        parents, readers = self._structure.parents[u], self._structure.rebuilders[u]
        is_read = any(self._actions.get(v) == RECOMPUTE for v in readers)
        is_spoilt = any(p in self._inexact or p in self._absent for p in parents)
        return is_read - is_spoilt
