"""Put rebuilt kernels before the step that reads them.

Extraction puts a rebuilt value right before its first reader, which may stand in the middle of a run of fusible work. A
kernel of its own there cuts the run in two, and what passes from one half to the other is written out: a gradient in
float32, twice the size of the half-precision one it was made from. The plan counts one step, with what is rebuilt for
it there from its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.fx import GraphModule, Node

from hilore_planner.passes.marks import MADE
from hilore_planner.passes.ops import OpKind, kind_of


def lead_rebuilt(gm: GraphModule) -> int:
    """Move rebuilt kernels, and what they read, before the run of fusible work that they cut; returns how many nodes.

    In place. A run is the fusible work between two kernels of the joint graph itself; its own order stays.
    """
    moved = 0
    for run in _runs(gm):
        own = [node for node in run if _is_own_work(node)]
        if len(own) < 2:
            continue
        between = run[run.index(own[0]) : run.index(own[-1])]
        leading = _needed([node for node in between if _is_rebuilt_kernel(node)], between)
        if any(map(_is_own_work, leading)):
            continue
        for node in leading:
            own[0].prepend(node)
        moved += len(leading)
    return moved


def _runs(gm: GraphModule) -> Iterator[list[Node]]:
    """Calls between the kernels of the joint graph itself."""
    run: list[Node] = []
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if kind_of(node) is OpKind.EXTERN and not node.meta.get(MADE):
            yield run
            run = []
        else:
            run.append(node)
    yield run


def _needed(kernels: Sequence[Node], among: Sequence[Node]) -> list[Node]:
    """The kernels and all they read of ``among``, in order."""
    found = set(kernels)
    for node in reversed(among):
        if node in found:
            found.update(node.all_input_nodes)
    return [node for node in among if node in found]


def _is_own_work(node: Node) -> bool:
    return not node.meta.get(MADE) and kind_of(node) is not OpKind.VIEW


def _is_rebuilt_kernel(node: Node) -> bool:
    return bool(node.meta.get(MADE)) and kind_of(node) is OpKind.EXTERN
