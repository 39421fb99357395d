"""A kernel that is run again does not cut the step it is run for."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes.lead import lead_rebuilt
from hilore_planner.passes.marks import MADE
from hilore_planner.passes.ops import OpKind, kind_of
from tests.passes.joint import Cut, Traced

pytestmark = pytest.mark.compat


def _own_work(gm: GraphModule) -> list[Node]:
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    return [n for n in nodes if not n.meta.get(MADE) and kind_of(n) is not OpKind.VIEW]


def _work(gm: GraphModule) -> list[str]:
    """The graph's work in order: ``own`` and ``kernel`` of the joint graph itself, ``rebuilt`` kernels."""
    found = []
    for node in gm.graph.nodes:
        kind = kind_of(node) if node.op == "call_function" else OpKind.VIEW
        if node.meta.get(MADE):
            found += ["rebuilt"] * (kind is OpKind.EXTERN)
        elif kind is not OpKind.VIEW:
            found.append("kernel" if kind is OpKind.EXTERN else "own")
    return found


def _cuts(work: list[str]) -> int:
    """Rebuilt kernels between two pieces of the same step."""
    count = 0
    for step in " ".join(work).split("kernel"):
        inner = step.split()
        while inner and inner[0] == "rebuilt":
            inner.pop(0)
        while inner and inner[-1] == "rebuilt":
            inner.pop()
        count += inner.count("rebuilt")
    return count


def test_no_rebuilt_kernel_cuts_a_step(halves: Cut, block: Traced) -> None:
    before, gm = halves.run(block), halves.backward
    own = _own_work(gm)
    assert _cuts(_work(gm)) > 0
    assert lead_rebuilt(gm) > 0
    gm.graph.lint()
    assert _cuts(_work(gm)) == 0
    assert _own_work(gm) == own
    for found, expected in zip(halves.run(block)[1], before[1], strict=True):
        assert (found is None and expected is None) or torch.equal(found, expected)


def test_once_is_enough(halves: Cut) -> None:
    lead_rebuilt(halves.backward)
    assert lead_rebuilt(halves.backward) == 0
