"""Which fusible work shares a kernel, decided as Inductor's scheduler does.

A value stays in registers where only fusible work reads it and little is read to make it: whoever reads it makes it.
Every other value is *realised*, by one kernel. Two kernels become one where they go over as many elements, read or pass
on something in common, are not far apart, and neither waits for a third that waits for the other; what shares most is
fused first. Otherwise the order of the program does not matter: work moves before or behind a product that stands
between.

Source: ``torch/_inductor/scheduler.py`` (``fuse_nodes``, ``can_fuse``, ``score_fusion_memory``) and
``torch/_inductor/ir.py`` (``StorageBox.mark_reuse``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.ops import OpKind, is_reduction, tensor
from hilore_planner.passes.schedule import roofline_bytes

_READS_IN_REGISTERS = 4
"""A value that several read is made by each of them where it is made from no more than this many others."""
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

    def is_near(self, other: Kernel) -> bool:
        """Whether two kernels are near enough in the program to be fused."""
        return _distance(self, other) <= _FAR

    def shared_bytes(self, other: Kernel) -> int:
        """Bytes that both read, or one makes and the other reads."""
        mine, theirs = self.reads | self.makes, other.reads | other.makes
        return sum(mine[key] for key in mine.keys() & theirs.keys())


def work_readers(node: Node, kinds: Mapping[Node, OpKind]) -> Iterator[Node]:
    """Who does work on a value, looking through views, or returns it."""
    stack, seen = list(node.users), set[Node]()
    while stack:
        user = stack.pop()
        if user in seen:
            continue
        seen.add(user)
        if kinds.get(user) is OpKind.VIEW:
            stack.extend(user.users)
        else:
            yield user


@dataclass(slots=True)
class _Side:
    """The ops of one side of a program, as kernels before any fusion."""

    calls: Sequence[Node]
    kinds: Mapping[Node, OpKind]
    is_kept: Callable[[Node], bool]
    is_loose: Callable[[Node], bool]
    kernels: list[Kernel] = field(default_factory=list)
    registers: dict[int, Storages] = field(default_factory=dict)
    """What each value in registers is made from."""
    makers: dict[int, Kernel] = field(default_factory=dict)
    outputs: dict[Node, Kernel] = field(default_factory=dict)
    """Multi-output ops."""

    def build(self) -> None:
        """Find the kernels."""
        own = frozenset(self.calls)
        for node in self.calls:
            if self.kinds[node] is OpKind.VIEW:
                self._note_output(node)
                continue
            reads, key = self._reads(node), compat.storage_key(node)
            if key is not None and self._is_in_registers(node, reads, own):
                self.registers[key] = reads
                continue
            self._add(node, key, reads)

    def _note_output(self, node: Node) -> None:
        key, source = compat.storage_key(node), node.args[0] if node.args else None
        kernel = self.outputs.get(source) if isinstance(source, Node) else None
        if kernel is not None and key is not None and compat.is_getitem(node):
            self._makes(kernel, key, node)

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
        if self.is_kept(node) or is_reduction(node):
            return False
        if any(self.kinds[reader] is OpKind.EXTERN for reader in readers):
            return False
        return len(readers) < 2 or len(reads) <= _READS_IN_REGISTERS

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


@dataclass(frozen=True, slots=True)
class Fusion:
    """The kernels of one side of a program in an order they can run in, and which storages stay in registers."""

    kernels: tuple[Kernel, ...]
    registers: frozenset[int]

    def is_read_elsewhere(self, node: Node, kernel: Kernel) -> bool:
        """Whether another kernel than its own reads a realised value."""
        key = compat.storage_key(node)
        return any(key in other.reads for other in self.kernels if other is not kernel)


def fuse(
    calls: Sequence[Node],
    kinds: Mapping[Node, OpKind],
    is_kept: Callable[[Node], bool],
    is_loose: Callable[[Node], bool] = lambda _: False,
) -> Fusion:
    """The kernels that ops run as.

    Args:
        calls: the ops, in order.
        kinds: of all of them.
        is_kept: whether a value is read beyond these ops.
        is_loose: whether a value is made again by everyone who reads it, whatever that takes.
    """
    side = _Side(calls, kinds, is_kept, is_loose)
    side.build()
    return Fusion(tuple(_ordered(_Fuser(side.kernels).run())), frozenset(side.registers))


class _Fuser:
    """Fuses kernels for as long as some can be."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._now = list(kernels)
        """What each kernel has become part of, by its bit."""

    def run(self) -> list[Kernel]:
        while any([self._join(one, other) for one, other in self._candidates()]):
            pass
        return list(dict.fromkeys(self._now))

    def _candidates(self) -> list[tuple[Kernel, Kernel]]:
        """Pairs of kernels that have something in common, those that share most first."""
        users: dict[int, list[Kernel]] = {}
        for kernel in dict.fromkeys(self._now):
            for key in (kernel.reads | kernel.makes) if kernel.is_fusible else ():
                users.setdefault(key, []).append(kernel)
        pairs = {
            (one.mask, other.mask): (one, other)
            for sharers in users.values()
            for one, other in combinations(sharers, 2)
            if one.sizes & other.sizes and one.is_near(other)
        }
        return sorted(
            pairs.values(), key=lambda pair: (-pair[0].shared_bytes(pair[1]), _distance(*pair))
        )

    def _join(self, one: Kernel, other: Kernel) -> bool:
        """Fuse two kernels, or what they have become part of, if they may be."""
        one, other = self._of(one.mask), self._of(other.mask)
        if one is other or not (one.sizes & other.sizes and one.is_near(other)):
            return False
        is_mixed = len(one.reductions) > 1 or len(other.reductions) > 1
        if is_mixed and not (one.after & other.mask or other.after & one.mask):
            return False  # sums over rows and columns in one kernel: it takes in only what is next to it
        if self._waits(one, other) or self._waits(other, one):
            return False
        mask = one.mask | other.mask
        joined = Kernel(
            one.nodes + other.nodes,
            min(one.first, other.first),
            max(one.last, other.last),
            {
                k: v
                for k, v in (one.reads | other.reads).items()
                if k not in one.makes | other.makes
            },
            one.makes | other.makes,
            one.sizes | other.sizes,
            mask,
            (one.before | other.before) & ~mask,
            (one.after | other.after) & ~mask,
            one.reductions | other.reductions,
        )
        for bit in _bits(mask):
            self._now[bit] = joined
        for kernel in dict.fromkeys(self._now):
            if kernel.before & mask:
                kernel.before |= mask | joined.before
        return True

    def _of(self, mask: int) -> Kernel:
        return self._now[(mask & -mask).bit_length() - 1]

    def _waits(self, one: Kernel, other: Kernel) -> bool:
        """Whether one waits for something that waits for the other."""
        makers = {self._now[bit] for bit in _bits(one.after)} - {one, other}
        return any(maker.before & other.mask for maker in makers)


def _distance(one: Kernel, other: Kernel) -> int:
    return max(abs(one.first - other.last), abs(other.first - one.last))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _ordered(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """In the order of the program, but what a kernel waits for before it."""
    kernels = sorted(kernels, key=lambda kernel: kernel.first)
    of_bit = {bit: kernel for kernel in kernels for bit in _bits(kernel.mask)}
    done: set[Kernel] = set()
    stack = list(reversed(kernels))
    while stack:
        kernel = stack[-1]
        waits_for = {of_bit[bit] for bit in _bits(kernel.after)} - done
        if kernel in done:
            stack.pop()
        elif waits_for:
            stack.extend(sorted(waits_for, key=lambda each: -each.first))
        else:
            done.add(stack.pop())
            yield kernel
