"""Chains of fusible work: what Inductor compiles to one kernel, or a few.

A chain is cut out of a graph by what it writes: everything fusible that those values are made from, back to what is in
memory. In a recovery graph two kinds are of interest: the chains that the program runs where every unit is stored, and
the chain that makes a unit again from its parents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from hilore_planner.passes import compat
from hilore_planner.passes.fusion import Fusion, fuse
from hilore_planner.passes.ops import OpKind, is_reduction, kind_of, tensor, work_readers
from hilore_planner.passes.schedule import roofline_bytes
from hilore_planner.passes.tables import is_table
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit

aten = torch.ops.aten


_LOOK_UPS = frozenset({aten.embedding.default, aten.gather.default, aten.index.Tensor})
"""Ops that read the parts of their first argument which they return."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Fusible work with the views in it.

    Attributes:
        nodes: in an order they can run in.
        inputs: values it reads from memory.
        outputs: values it writes to memory.
        input_bytes: read of each input.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    input_bytes: tuple[int, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written, each value once."""
        return sum(self.input_bytes) + sum(map(value_bytes, self.outputs))


def value_bytes(node: Node) -> int:
    """Bytes of the elements of a node's tensor, or of all of a multi-output op's; 0 where it has none."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return sum(roofline_bytes(each) for each in values if isinstance(each, torch.Tensor))


def cut_chain(outputs: Sequence[Node], is_inside: Callable[[Node], bool]) -> Chain:
    """Everything ``is_inside`` that ``outputs`` are made from; the first that is not is an input."""
    nodes: dict[Node, None] = {}
    inputs: dict[Node, None] = {}
    stack = list(reversed(outputs))
    while stack:
        node = stack[-1]
        if node in nodes:
            stack.pop()
            continue
        arguments = [arg for arg in compat.used_by(node) if arg not in nodes]
        pending = [arg for arg in arguments if is_inside(arg)]
        if pending:
            stack.extend(reversed(pending))
            continue
        stack.pop()
        nodes[node] = None
        inputs |= dict.fromkeys(arguments)
    read = tuple(node for node in inputs if tensor(node) is not None)
    sizes = tuple(_read_bytes(node, nodes) for node in read)
    return Chain(tuple(nodes), read, tuple(dict.fromkeys(outputs)), sizes)


def _read_bytes(node: Node, nodes: Collection[Node]) -> int:
    """Bytes a chain reads of an input: no more than the parts it slices or looks up."""
    readers = [user for user in node.users if user in nodes]
    if all(compat.is_view(r) or (r.target in _LOOK_UPS and r.args[0] is node) for r in readers):
        return min(value_bytes(node), sum(map(value_bytes, readers)))
    return value_bytes(node)


Piece = Node | Chain
"""What runs by itself: a kernel of its own, or a chain."""


class Chains:
    """The chains of one recovery graph."""

    def __init__(self, graph: RecoveryGraph) -> None:
        self._graph = graph
        self._forward = frozenset(graph.joint.forward)
        self._kinds = graph.schedule.kinds
        tables = list(filter(is_table, graph.joint.forward))  # whoever makes them writes them out
        makers = (unit.maker for unit in graph.units.values())
        self._in_memory = graph.joint.held_storages() | _keys((*makers, *tables))
        results = (*graph.joint.forward_outputs, *graph.joint.backward_outputs)
        self._given = _keys(node for node in (*results, *tables) if node is not None)
        forward, self._backward = self._sides()
        self.pieces = (*self._pieces_of(forward), *self._pieces_of(self._backward))
        """All that runs, every unit that backward reads being stored.

        The forward writes here only what it needs itself: what storing more costs is a matter of the unit.
        """
        self._chains_of: dict[Node, list[Chain]] = {}
        self._index()
        self._units: dict[str, Chain] = {}

    def of_unit(self, unit: RecoveryUnit) -> Chain:
        """What makes a fusible unit again from its parents."""
        if unit.name not in self._units:
            self._units[unit.name] = cut_chain([unit.maker], self._is_made_again)
        return self._units[unit.name]

    def is_fusible(self, unit: RecoveryUnit) -> bool:
        """Whether a unit is made by fusible work."""
        return self._kinds[unit.maker] is OpKind.FUSIBLE

    def is_written(self, unit: RecoveryUnit) -> bool:
        """Whether the forward writes a unit in any case."""
        chains = self._chains_of.get(unit.maker, ())
        return not self.is_fusible(unit) or any(unit.maker in chain.outputs for chain in chains)

    def extra_reads_bytes(self, unit: RecoveryUnit) -> int:
        """Bytes that the kernel which reads a unit reads more of, where it makes it again instead; may be negative."""
        graph = self._graph
        readers = [chain for node in unit.readers for chain in self._chains_of.get(node, ())]
        children = (graph.units[name] for name in graph.digraph.successors(unit.name))
        readers += [self.of_unit(child) for child in children if self.is_fusible(child)]
        read = _keys(node for chain in readers for node in chain.inputs)
        return _missing_bytes(self.of_unit(unit), read) - value_bytes(unit.maker)

    def joined_bytes(self, unit: RecoveryUnit) -> int | None:
        """Bytes that a kernel of the backward moves more of, where it makes a unit again for those that read it.

        None where no kernel would: it must read what the unit is made from, go over as many elements, and not wait
        for anything that reads the unit.
        """
        chain = self.of_unit(unit)
        if any(is_reduction(node) for node in chain.nodes):
            return None
        readers = self._backward.readers
        late = readers.get(_key(unit.maker), ())
        elements = math.prod(map(compat.hint, _shape(unit.maker)))
        sharing = {kernel for node in chain.inputs for kernel in readers.get(_key(node), ())}
        more = [
            _missing_bytes(chain, kernel.reads.keys())
            for kernel in sharing
            if kernel.sizes == {elements}
            and not any(kernel.before & reader.mask for reader in late)
            and all(kernel.is_near(reader) for reader in late)
        ]
        return min(more) + value_bytes(unit.maker) if more else None

    def _sides(self) -> tuple[Fusion, Fusion]:
        joint = self._graph.joint
        again = [node for node in joint.forward if self._is_in_registers(node)]
        return (
            fuse(joint.forward, self._kinds, self._is_given),
            fuse((*again, *joint.backward), self._kinds, self._is_given, self._is_in_registers),
        )

    def _pieces_of(self, side: Fusion) -> Iterator[Piece]:
        return _pieces(side, self._is_given, lambda node: self._is_made_again(node, side))

    def _index(self) -> None:
        for chain in self.pieces:
            if isinstance(chain, Chain):
                for node in chain.nodes:
                    self._chains_of.setdefault(node, []).append(chain)

    def _is_given(self, node: Node) -> bool:
        return compat.storage_key(node) in self._given

    def _is_made_again(self, node: Node, side: Fusion | None = None) -> bool:
        """Whether a chain makes a value itself rather than read it: a look at another value, or one in registers."""
        if self._kinds.get(node) is OpKind.VIEW:
            return _is_look(node, self._kinds)
        if side is not None and compat.storage_key(node) in side.registers:
            return True
        return self._is_in_registers(node)

    def _is_in_registers(self, node: Node) -> bool:
        """Whether a forward value is made again by whoever reads it in the backward."""
        return (
            node in self._forward
            and self._kinds[node] is OpKind.FUSIBLE
            and compat.storage_key(node) not in self._in_memory
        )


def _keys(nodes: Iterable[Node]) -> frozenset[int]:
    return frozenset(map(_key, nodes)) - {-1}


def _key(node: Node) -> int:
    key = compat.storage_key(node)
    return -1 if key is None else key


def _shape(node: Node) -> Sequence[int]:
    value = tensor(node)
    return () if value is None else value.shape


def _missing_bytes(chain: Chain, read: Collection[int]) -> int:
    """Bytes of a chain's inputs that are not read already."""
    sizes = zip(chain.inputs, chain.input_bytes, strict=True)
    return sum(size for node, size in sizes if _key(node) not in read)


def _is_look(node: Node, kinds: Mapping[Node, OpKind]) -> bool:
    """Whether a view is only another look at a value, not one output of a kernel of its own."""
    if compat.is_sym_node(node):
        return False
    return not (compat.is_getitem(node) and kinds.get(node.args[0]) is OpKind.EXTERN)  # type: ignore[arg-type]


def pieces(gm: GraphModule) -> Iterator[Piece]:
    """What a forward or backward graph runs, in order."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    kinds = {node: kind_of(node) for node in calls}

    def is_returned(node: Node) -> bool:
        return any(reader.op == "output" for reader in work_readers(node, kinds))

    def is_inside(node: Node) -> bool:
        if kinds.get(node) is OpKind.VIEW:
            return _is_look(node, kinds)
        return compat.storage_key(node) in side.registers

    side = fuse(calls, kinds, is_returned)
    return _pieces(side, is_returned, is_inside)


def _pieces(
    side: Fusion, is_kept: Callable[[Node], bool], is_inside: Callable[[Node], bool]
) -> Iterator[Piece]:
    for kernel in side.kernels:
        if not kernel.is_fusible:
            yield kernel.nodes[0]
            continue
        own = frozenset(kernel.nodes)
        written = [
            node for node in kernel.nodes if is_kept(node) or side.is_read_elsewhere(node, kernel)
        ]
        if written:
            yield cut_chain(written, lambda node: node in own or is_inside(node))  # noqa: B023
