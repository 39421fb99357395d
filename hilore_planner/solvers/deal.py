"""Dealing the folded program's counts out to the layers.

Any way to do so has the same time, and mostly the same memory. What differs is what is recomputed
from a copy, and so inexact; the folded program counts on as little of that as can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hilore_planner.solvers.fold import Folded
from hilore_planner.solvers.structure import Structure
from hilore_planner.solvers.variables import RECOMPUTE, STORE, lossy_actions

_RANKS: tuple[Mapping[str, int], ...] = ({STORE: 1, RECOMPUTE: 2}, {STORE: 0, RECOMPUTE: 2})
"""Where actions come in a hand: copies first, or after what is stored."""


def dealt(folded: Folded, values: Sequence[float]) -> Iterator[dict[str, str]]:
    """Actions by unit that have the counts in ``values``, one for each way to deal them out."""
    structure = folded.program.variables.structure
    hands = {
        first: {action: round(values[column]) for action, column in actions.items()}
        for first, actions in enumerate(folded.program.variables.actions)
    }
    for rank in _RANKS if any(structure.tainted) else _RANKS[:1]:
        for is_reversed in (False, True):
            table = _Table(structure)
            for first, members in folded.members.items():
                counts = hands[first]
                hand = [a for a in _ordered(counts, rank) for _ in range(counts[a])]
                table.deal(members[::-1] if is_reversed else members, hand)
            yield table.choice()


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
