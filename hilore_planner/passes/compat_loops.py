"""Which loop of a kernel each of its parts runs in: the part of :mod:`compat` that orders them."""

from __future__ import annotations

from typing import Any

from torch._inductor import custom_graph_pass
from torch._inductor.scheduler import FusedSchedulerNode
from torch._inductor.virtualized import V

_MOST_HELD = 1024
_Pass: type = getattr(custom_graph_pass, "CustomSchedulerPass", object)
"""What caches ask for a name; torch 2.11 has none, and takes it as it is."""


class SumTogether(_Pass):  # type: ignore[misc]
    """Inductor's pass over kernels that puts what sums over rows into as few loops as there can be.

    A kernel that is too wide to hold its rows goes over them once for each loop. Inductor runs a kernel's parts in the
    order in which it fused them, and starts a loop wherever one needs a sum of the loop before: a norm's output would
    come before the largest value of the same row, and what is encoded by that would take a third loop.
    """

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """The kernels, of which those of a device that sum are ordered within."""
        for node in nodes:
            if type(node) is FusedSchedulerNode and node.is_gpu() and _has_loops(node):
                node.snodes = by_loops(node.snodes)
        return nodes

    def uuid(self) -> str:
        """Its name in caches."""
        return "hilore: sums together, 1"

    __repr__ = uuid


def _has_loops(node: Any) -> bool:
    """Whether a kernel sums over more than it may hold at once."""
    _, (_, columns) = node.group
    return bool(V.graph.sizevars.statically_known_lt(_MOST_HELD, columns))


def by_loops(parts: list[Any]) -> list[Any]:
    """A kernel's parts by how many sums, one after the other, come before them, and else as they were.

    First of these come figures of rows: they are calculated between two loops.
    """
    loops: dict[str, int] = {}
    for part in parts:
        before = (other for other in parts if other.get_name() in part.ancestors)
        loops[part.get_name()] = max(
            (loops[other.get_name()] + other.is_reduction() for other in before), default=0
        )
    rows = next(part.group[1][0] for part in parts if part.is_reduction())
    return sorted(parts, key=lambda part: (loops[part.get_name()], part.group[1] != (rows, 1)))
