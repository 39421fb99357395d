"""Units and rewritten code of one small graph, as text."""

from __future__ import annotations

import re

import torch

from tests.backend.models import Narrow, batch
from tests.golden_text import Golden
from tests.passes.joint import Traced, cut, trace_update
from tests.passes.placements import place, prefer, problem_of


def _traced() -> Traced:
    torch.manual_seed(0)
    return trace_update(Narrow(), batch(256, 64))


def test_units(golden: Golden) -> None:
    graph = _traced().units()
    lines = [
        f"{u.name:<12} kept {u.kept_bytes:>7} rebuilt {u.rebuilt_bytes:>7} made {u.made_at} "
        f"released {u.released_at} read {u.read_at} parents {graph.parents(u.name)} {u.forced}".rstrip()
        for u in graph.units.values()
    ]
    steps = [
        f"{'backward' if step >= graph.schedule.first_backward else 'forward'} {step}: "
        f"{', '.join(node.name for node in nodes)}"
        for step, nodes in enumerate(graph.schedule.steps)
    ]
    golden.check("units.txt", "\n".join([*lines, "", *steps]) + "\n")


def test_rewritten_code(golden: Golden) -> None:
    """The first product is kept in int8; tanh is made again from its decoded copy."""
    graph = _traced().units()
    problem = problem_of(graph)
    placement = place(problem, prefer("recompute"))
    placement["up:addmm"] = "compress:int8"
    result = cut(graph, placement)
    texts = [
        re.sub(r";\s.*$", "", gm.code.strip(), flags=re.MULTILINE)
        for gm in (result.forward, result.backward)
    ]
    actions = "\n".join(f"{name}: {action}" for name, action in placement.items())
    golden.check("rewritten.txt", "\n\n".join([actions, *texts]) + "\n")
