"""The kernels of a program before any are fused.

A value stays in registers where only fusible work reads it and little is read to make it: whoever reads it makes it.
On the CPU it must not take an exponential either, if several read it. Every other value is *realised*, by one kernel.

Source: ``torch/_inductor/ir.py`` (``StorageBox.should_realize_on_reuse``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.ops import OpKind, is_reduction, tensor, work_readers
from hilore_planner.passes.schedule import is_on_cpu, roofline_bytes

aten = torch.ops.aten

_READS_IN_REGISTERS = 4
"""A value that several read is made by each of them where it is made from no more than this many others."""
_DEAR = frozenset({aten.exp.default, aten.sigmoid.default})
"""What a CPU does once for all who read the result."""
_FAR = 64
"""Kernels between two that are not fused."""

Storages = dict[int, int]
"""Bytes by storage."""


@dataclass(slots=True, eq=False)
class Kernel:
    """Work that runs as one.

    Attributes:
        nodes: an op that is a kernel of its own, or realised fusible values.
        first, last: where in the program, counted in kernels before fusion.
        reads: storages from memory.
        makes: storages realised.
        sizes: numbers of elements gone over or made; empty for an op of its own, which is fused with nothing.
        mask: bits of what became this kernel.
        before: bits of all that it waits for.
        after: bits of those whose results it reads.
    """

    nodes: list[Node]
    first: int
    last: int
    reads: Storages
    makes: Storages
    sizes: frozenset[int]
    mask: int
    before: int = 0
    after: int = 0
    reductions: frozenset[int] = frozenset()
    """Numbers of elements that reductions in it end with."""

    @property
    def is_fusible(self) -> bool:
        """Whether it is not an op of its own."""
        return bool(self.sizes)

    def distance(self, other: Kernel) -> int:
        """Kernels from the first to the last of both."""
        return max(abs(self.first - other.last), abs(other.first - self.last))

    def is_near(self, other: Kernel) -> bool:
        """Whether two kernels are near enough in the program to be fused."""
        return self.distance(other) <= _FAR

    def shared_bytes(self, other: Kernel) -> int:
        """Bytes that both read, or one makes and the other reads."""
        mine, theirs = self.reads | self.makes, other.reads | other.makes
        return sum(mine[key] for key in mine.keys() & theirs.keys())


@dataclass(slots=True)
class Side:
    """The ops of one side of a program, as kernels before any fusion."""

    calls: Sequence[Node]
    kinds: Mapping[Node, OpKind]
    is_kept: Callable[[Node], bool]
    is_loose: Callable[[Node], bool]
    kernels: list[Kernel] = field(default_factory=list)
    registers: dict[int, Storages] = field(default_factory=dict)
    """What each value in registers is made from."""
    dear: set[int] = field(default_factory=set)
    """Those that take an exponential on the CPU."""
    makers: dict[int, Kernel] = field(default_factory=dict)
    outputs: dict[Node, Kernel] = field(default_factory=dict)
    """Multi-output ops."""

    def build(self) -> None:
        """Find the kernels."""
        own = frozenset(self.calls)
        for node in self.calls:
            if self.kinds[node] is OpKind.VIEW:
                self._note_output(node)
                self._note_tie(node)
                continue
            reads, key = self._reads(node), compat.storage_key(node)
            if key is not None and self._is_in_registers(node, reads, own):
                self.registers[key] = reads
                if self.is_dear(node):
                    self.dear.add(key)
                continue
            self._add(node, key, reads)

    def _note_output(self, node: Node) -> None:
        key, source = compat.storage_key(node), node.args[0] if node.args else None
        kernel = self.outputs.get(source) if isinstance(source, Node) else None
        if kernel is not None and key is not None and compat.is_getitem(node):
            self._makes(kernel, key, node)

    def _note_tie(self, node: Node) -> None:
        """A value that is held after another is made no earlier, and what reads it waits for both.

        Where the other is made from the value itself, only what reads it later waits: that is nothing to its kernel.
        """
        if node.target is not compat.held_after():
            return
        keys = (compat.storage_key(arg) for arg in node.args if isinstance(arg, Node))
        made, before = (self.makers.get(-1 if key is None else key) for key in keys)
        if made is None or before is None or made is before or before.before & made.mask:
            return
        made.after |= before.mask
        waits_for = before.mask | before.before
        for kernel in self.kernels:
            if kernel is made or kernel.before & made.mask:
                kernel.before |= waits_for

    def _makes(self, kernel: Kernel, key: int, node: Node) -> None:
        kernel.makes[key] = _bytes(node)
        self.makers[key] = kernel

    def _reads(self, node: Node) -> Storages:
        """Storages that making a value reads from memory."""
        reads: Storages = {}
        for arg in node.all_input_nodes:
            key = compat.storage_key(arg)
            if key is not None:
                reads |= self.registers.get(key, {key: _bytes(arg)})
        return reads

    def _is_in_registers(self, node: Node, reads: Storages, own: frozenset[Node]) -> bool:
        if self.kinds[node] is not OpKind.FUSIBLE:
            return False
        if self.is_loose(node):
            return True
        readers = [reader for reader in work_readers(node, self.kinds) if reader in own]
        if self.is_kept(node) or is_reduction(node) or compat.is_written_out(node):
            return False
        if any(self.kinds[reader] is OpKind.EXTERN for reader in readers):
            return False
        if len(readers) < 2:
            return True
        return len(reads) <= _READS_IN_REGISTERS and not self.is_dear(node)

    def is_dear(self, node: Node) -> bool:
        """Whether making a value from what is in memory takes an exponential on the CPU."""
        takes_one = node.target in _DEAR or any(
            compat.storage_key(arg) in self.dear for arg in node.all_input_nodes
        )
        return takes_one and is_on_cpu(node)

    def _add(self, node: Node, key: int | None, reads: Storages) -> None:
        place = len(self.kernels)
        makers = {k.mask: k for read in reads if (k := self.makers.get(read)) is not None}
        kernel = Kernel(
            [node], place, place, reads, {}, self._sizes(node), 1 << place,
            reductions=frozenset({_elements(node)} if is_reduction(node) else ()),
        )  # fmt: skip
        for maker in makers.values():
            kernel.after |= maker.mask
            kernel.before |= maker.mask | maker.before
        self.kernels.append(kernel)
        self.outputs[node] = kernel
        if key is not None:
            self._makes(kernel, key, node)

    def _sizes(self, node: Node) -> frozenset[int]:
        if self.kinds[node] is not OpKind.FUSIBLE:
            return frozenset()
        read = node.all_input_nodes if is_reduction(node) or tensor(node) is None else ()
        counts = (_elements(each) for each in (node, *read))
        return frozenset(count for count in counts if count)


def _bytes(node: Node) -> int:
    value = tensor(node)
    return 0 if value is None else roofline_bytes(value)


def _elements(node: Node) -> int:
    value = tensor(node)
    return 0 if value is None else roofline_bytes(value) // value.element_size()
