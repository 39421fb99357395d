"""The cheapest cut of a sequence of items into few contiguous parts, by dynamic programming."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter


def cheapest_parts(items: int, parts: int, cost: Callable[[int, int], float]) -> tuple[int, ...]:
    """Bounds 0 = b₀ < b₁ < … = ``items`` of at most ``parts`` parts with the least total cost.

    ``cost(start, stop)`` is the cost of a part. Of equally cheap cuts one with fewer parts is
    taken. Evaluates O(parts·items²) costs.
    """
    nowhere: tuple[float, tuple[int, ...]] = (math.inf, ())
    answer, layer = nowhere, [(0.0, (0,)), *[nowhere] * items]
    for _ in range(parts):
        layer = [nowhere] + [
            min(
                (
                    (layer[start][0] + cost(start, stop), (*layer[start][1], stop))
                    for start in range(stop)
                ),
                key=itemgetter(0),
            )
            for stop in range(1, items + 1)
        ]
        answer = min(answer, layer[items], key=itemgetter(0))
    return answer[1]
