"""Turns a set of nodes into one sweep over row chunks, or says which node mixes rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.head.operands import operands
from hilore_planner.passes.head.recipes import recipe
from hilore_planner.passes.head.shapes import product, row_blocks, same, shape_of
from hilore_planner.passes.head.site import (
    ChunkPass,
    Domain,
    Exit,
    NotRowWiseError,
    Recipe,
    Rows,
    Size,
    Step,
)
from hilore_planner.passes.head.sums import row_sum


class _Layouts:
    """Row layouts of the nodes of one sweep, found from the logits on."""

    def __init__(self, members: Collection[Node], rows: Mapping[Domain, Size]) -> None:
        self.members = members
        self.rows = rows
        self.made: dict[Node, tuple[Rows | None, Recipe]] = {}

    def known(self, node: Node) -> Rows | None:
        """The layout of a node already placed."""
        found = self.made.get(node)
        return None if found is None else found[0]

    def infer(self, node: Node) -> None:
        """Place a node from the layouts of what it reads."""
        reason = (
            f"{node.target} gives shape {tuple(shape_of(node))}, in which the "
            f"{self.rows['kept']} rows of the logits are not to be found"
        )
        for block in self._blocks(node):
            try:
                made = recipe(node, block)
            except NotRowWiseError as error:
                reason = error.reason
                continue
            if self._agrees(made):
                self._place(node, block, made)
                return
        total = row_sum(node, self.known)
        if total is None:
            raise NotRowWiseError(node, reason)
        self._place(node, None, total)

    def _blocks(self, node: Node) -> Iterator[Rows]:
        for domain, rows in self.rows.items():
            for block in row_blocks(shape_of(node), rows):
                yield replace(block, domain=domain)

    def demand(self, node: Node, block: Rows) -> None:
        """Place a node where one of its readers needs its rows to be."""
        placed = self.made.get(node)
        if placed is None:
            self._place(node, block, recipe(node, block))
        elif placed[0] != block:
            raise NotRowWiseError(node, "its rows are read in two layouts")

    def _agrees(self, made: Recipe) -> bool:
        return all(
            operand.rows == self.known(operand.node) and not operand.spread
            for operand in operands(made)
            if operand.node in self.made
        )

    def _place(self, node: Node, block: Rows | None, made: Recipe) -> None:
        self.made[node] = (block, made)
        for operand in operands(made):
            if operand.node in self.members:
                if operand.rows is None or operand.spread:
                    raise NotRowWiseError(operand.node, "its rows are broadcast over others")
                self.demand(operand.node, operand.rows)
            elif operand.rows is not None and not operand.spread:
                self._check_external(operand.node, operand.rows)

    def _check_external(self, node: Node, block: Rows) -> None:
        sizes = shape_of(node)[block.axis : block.axis + block.count]
        rows = self.rows[block.domain]
        if not same(product(sizes), rows):
            raise NotRowWiseError(node, f"it has {product(sizes)} rows and not {rows}")


def trace_pass(
    order: Sequence[Node],
    logits: Node,
    members: Collection[Node],
    *,
    rows: Mapping[Domain, Size],
    wide: Collection[Node],
    read_later: Collection[Node],
    tangent_dependent: Collection[Node],
) -> ChunkPass:
    """One sweep that does ``members`` chunk by chunk.

    Args:
        order: the nodes of the graph in program order.
        logits: the head's matmul, (N, V).
        rows: how many rows there are in each domain.
        members: nodes that may be done inside the sweep; all else it reads is computed before.
        wide: the vocabulary-sized nodes, which never leave a sweep.
        read_later: nodes of later sweeps: what they read of this one has to leave it.
        tangent_dependent: nodes that read a tangent.

    Raises:
        NotRowWiseError: a member is needed that cannot be done on a chunk of rows.
    """
    layouts = _Layouts(members, rows)
    layouts.demand(logits, Rows(0, 1, "all" if "all" in rows else "kept"))
    for node in order:
        reads_placed = any(arg in layouts.made for arg in node.all_input_nodes)
        if node in members and node not in layouts.made and reads_placed:
            layouts.infer(node)
    exits = tuple(
        Exit(
            node,
            "sum" if layouts.known(node) is None else "rows",
            layouts.known(node),
            node in tangent_dependent,
        )
        for node in order
        if node in layouts.made and node not in wide and _leaves(node, layouts.made, read_later)
    )
    needed = _needed(layouts.made, exits)
    steps = tuple(Step(node, layouts.made[node][1]) for node in order if node in needed)
    return ChunkPass(steps, exits)


def _leaves(node: Node, inside: Collection[Node], read_later: Collection[Node]) -> bool:
    readers = [user for user in node.users if not compat.is_sym_node(user)]
    return any(user not in inside or user in read_later for user in readers)


def _needed(made: dict[Node, tuple[Rows | None, Recipe]], exits: Sequence[Exit]) -> set[Node]:
    needed: set[Node] = set()
    todo = [leaving.node for leaving in exits]
    while todo:
        node = todo.pop()
        if node in made and node not in needed:
            needed.add(node)
            todo.extend(operand.node for operand in operands(made[node][1]))
    return needed
