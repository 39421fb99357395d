"""Keep a graph in the order it was planned in.

The plan counts what is alive step by step, so the steps must stay where they are. Extraction puts a rebuilt value right
before its first reader, but Inductor, which fuses kernels that read the same input, may pull it (or any other fusible
work) up to a kernel far earlier, and moves a product whose result is added to something later down to that addition.
Reductions that only the caller reads it puts off, and keeps what they read. Each written-out fusible value is therefore
tied to the last kernel of its own before it, and each such kernel to what was written out since the one before it.
So are values made again that Inductor writes out for being dear to make (see ``kernels``): one kernel would else make
all that are made of the same, also for steps that come much later. A tie orders kernels; it moves no data. On the CPU
it also ends the function before it, which would hold all that its loops read until the last of them is done. Where
memory is plentiful nothing is tied: fusion across steps saves time.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.kernels import Side
from hilore_planner.passes.marks import MADE, PLACED
from hilore_planner.passes.ops import OpKind, is_reduction, kind_of, tensor, work_readers
from hilore_planner.passes.schedule import is_on_cpu


def keep_order(gm: GraphModule, crowded: Collection[str]) -> int:
    """Tie the written-out values of a graph to their place, in place; returns how many.

    ``crowded`` names nodes of the joint graph where memory is short. Rebuilt values are tied everywhere, as no gradient
    they depend on holds them back, and so are nodes marked as placed. A node made since counts with the next node of
    the joint graph, which reads it.
    """
    ties = _ties(gm, crowded)
    for node, anchor in ties:
        tie(gm, node, anchor)
    if ties:
        gm.recompile()
    return len(ties)


def sink_free(gm: GraphModule) -> None:
    """Put rebuilt values that need only the graph's inputs right before their first reader, in place.

    Nothing holds such work back, and a kernel that starts early and ends late would pull all it waits for forward.
    What the backward makes itself stays where it was planned: moved, it would keep what it reads.
    """
    kinds = {n: kind_of(n) for n in gm.graph.nodes if n.op == "call_function"}
    free = {node for node in gm.graph.nodes if node.op == "placeholder"}
    for node, kind in kinds.items():
        if kind is not OpKind.EXTERN and free.issuperset(node.all_input_nodes):
            free.add(node)
    for node in reversed(kinds):
        readers = [user for user in node.users if user.op != "output"]
        is_own = kinds[node] is not OpKind.VIEW and not node.meta.get(MADE)
        if node in free and readers and not is_own:
            # Readers have been moved before: nodes compare by where they stand now.
            min(readers).prepend(node)


def _ties(gm: GraphModule, crowded: Collection[str]) -> list[tuple[Node, Node]]:
    """Nodes to tie, each with what it must follow: the last kernel of its own before it, at first an input.

    A kernel in a crowded step also follows what was written out since the kernel before it. What need not stay in its
    place must still not move up among crowded steps: it follows the last kernel there.
    """
    kinds = {n: kind_of(n) for n in gm.graph.nodes if n.op == "call_function"}
    steps, is_crowded = _steps(kinds), _is_crowded(kinds, crowded)
    needs, dear = _Needs(gm), _dear(kinds)
    inputs = (n for n in gm.graph.nodes if n.op == "placeholder" and tensor(n) is not None)
    source = anchor = next(inputs, None)
    fence: Node | None = None
    tied_op: object = None
    written: list[Node] = []
    ties: list[tuple[Node, Node]] = []
    for node, kind in kinds.items():
        if source is None or anchor is None or tensor(node) is None:
            continue
        if compat.is_getitem(node) and node.args[0] is tied_op:
            continue  # the op's first output has tied it
        is_kernel = kind is OpKind.EXTERN or _is_output(node)
        is_placed = bool(node.meta.get(PLACED))
        is_written = node in dear or _is_written_out(node, kinds, steps)
        if not (is_kernel or is_placed or is_written):
            continue
        stays = is_crowded[node] or is_placed or bool(node.meta.get(MADE))
        if is_kernel:
            stays = stays or (bool(crowded) and _is_added_later(node, kinds, steps))
        if stays:
            is_apart = is_kernel or bool(node.meta.get(MADE))
            before = written if is_apart and written else [anchor]
        else:
            before = [fence] if fence is not None else []
        # A tie to what a value reads, or to what another may be written over, would keep it from being so.
        ties += ((node, source if needs.holds(node, other) else other) for other in before)
        if is_kernel:
            written, anchor = [], node
            fence = node if is_crowded[node] else fence
            tied_op = node.args[0] if compat.is_getitem(node) else node
        elif is_crowded[node] or is_placed:
            written.append(node)
    return ties


class _Needs:
    """Which nodes need which others' results, directly or not."""

    def __init__(self, gm: GraphModule) -> None:
        self._place = {node: place for place, node in enumerate(gm.graph.nodes)}
        self._bits: dict[Node, int] = {}
        """Of each node, itself and all it needs, by their places."""
        for node, place in self._place.items():
            found = 1 << place
            for arg in node.all_input_nodes:
                found |= self._bits[arg]
            self._bits[node] = found

    def holds(self, node: Node, other: Node) -> bool:
        """Whether ``node`` is ``other`` or needs it."""
        return bool(self._bits[node] >> self._place[other] & 1)


def _is_output(node: Node) -> bool:
    """Whether a node is one output of a multi-output kernel, not a part of a view."""
    return compat.is_getitem(node) and not compat.is_view(node.args[0])  # type: ignore[arg-type]


def _steps(kinds: dict[Node, OpKind]) -> dict[Node, int]:
    """Number of kernels of their own before each node, its own included."""
    steps, count = {}, 0
    for node, kind in kinds.items():
        count += kind is OpKind.EXTERN
        steps[node] = count
    return steps


def _is_crowded(kinds: dict[Node, OpKind], crowded: Collection[str]) -> dict[Node, bool]:
    found, following = {}, False
    for node in reversed(kinds):
        if not node.meta.get(MADE) and kinds[node] is not OpKind.VIEW:
            following = node.name in crowded
        found[node] = following
    return found


def _is_written_out(node: Node, kinds: dict[Node, OpKind], steps: dict[Node, int]) -> bool:
    """Whether a value becomes a buffer: the caller or a kernel of its own reads it, or a later step does."""
    if kinds[node] is not OpKind.FUSIBLE:
        return False
    return any(
        kinds.get(reader) is not OpKind.FUSIBLE or steps[reader] != steps[node]
        for reader in work_readers(node, kinds)
    )


def _dear(kinds: dict[Node, OpKind]) -> set[Node]:
    """Values made again that Inductor writes out on the CPU, whichever step their readers are in."""
    made = [node for node in kinds if node.meta.get(MADE) and is_on_cpu(node)]
    if not made:
        return set()

    def is_returned(node: Node) -> bool:
        return any(reader.op == "output" for reader in work_readers(node, kinds))

    side = Side(list(kinds), kinds, is_returned, lambda _: False)
    side.build()
    return {
        node
        for node in made
        if kinds[node] is OpKind.FUSIBLE and not is_reduction(node)
        if side.is_dear(node) and compat.storage_key(node) not in side.registers
    }


def _is_added_later(node: Node, kinds: dict[Node, OpKind], steps: dict[Node, int]) -> bool:
    """Whether a product waits for later kernels before something is added to it.

    Inductor would run it only then, as one product-and-addition, and keep its operands until then: the gradient of
    tied embeddings keeps the gradient of all logits through the whole backward.
    """
    readers = work_readers(node, kinds)
    return any(kinds.get(r) is OpKind.FUSIBLE and steps[r] > steps[node] for r in readers)


def tie(gm: GraphModule, node: Node, anchor: Node) -> None:
    """Have a value made no earlier than another, in place."""
    users = list(node.users)
    with gm.graph.inserting_after(node):
        held = gm.graph.call_function(compat.held_after(), (node, anchor))
    held.meta = dict(node.meta)
    for user in users:
        user.replace_input_with(node, held)
