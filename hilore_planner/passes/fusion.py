"""Which fusible work shares a kernel, decided as Inductor's scheduler does.

Two kernels become one where they go over as many elements, read or pass on something in common, are not far apart, and
neither waits for a third that waits for the other; what shares most is fused first. Otherwise the order of the program
does not matter: work moves before or behind a product that stands between.

Source: ``torch/_inductor/scheduler.py`` (``fuse_nodes``, ``can_fuse``, ``score_fusion_memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.kernels import Kernel, Side
from hilore_planner.passes.ops import OpKind


@dataclass(frozen=True, slots=True)
class Fusion:
    """The kernels of one side of a program in an order they can run in, and which storages stay in registers."""

    kernels: tuple[Kernel, ...]
    registers: frozenset[int]
    readers: Mapping[int, Sequence[Kernel]]
    """Who reads each storage from memory."""

    def is_read_elsewhere(self, node: Node, kernel: Kernel) -> bool:
        """Whether another kernel than its own reads a realised value."""
        key = compat.storage_key(node)
        return any(
            other is not kernel for other in self.readers.get(-1 if key is None else key, ())
        )


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
    side = Side(calls, kinds, is_kept, is_loose)
    side.build()
    kernels = tuple(_ordered(_Fuser(side.kernels).run()))
    readers: dict[int, list[Kernel]] = {}
    for kernel in kernels:
        for key in kernel.reads:
            readers.setdefault(key, []).append(kernel)
    return Fusion(kernels, frozenset(side.registers), readers)


class _Fuser:
    """Fuses kernels for as long as some can be."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._now = list(kernels)
        """What each kernel has become part of, by its bit."""
        self._live = dict.fromkeys(self._now)

    def run(self) -> list[Kernel]:
        while any([self._join(one, other) for one, other in self._candidates()]):
            pass
        return list(dict.fromkeys(self._now))  # in the order of the program

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
            pairs.values(),
            key=lambda pair: (-pair[0].shared_bytes(pair[1]), pair[0].distance(pair[1])),
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
        mask, makes = one.mask | other.mask, one.makes | other.makes
        joined = Kernel(
            one.nodes + other.nodes,
            min(one.first, other.first),
            max(one.last, other.last),
            {k: v for k, v in (one.reads | other.reads).items() if k not in makes},
            makes,
            one.sizes | other.sizes,
            mask,
            (one.before | other.before) & ~mask,
            (one.after | other.after) & ~mask,
            one.reductions | other.reductions,
        )
        for bit in _bits(mask):
            self._now[bit] = joined
        del self._live[one], self._live[other]
        self._live[joined] = None
        before = mask | joined.before
        for kernel in self._live:
            if kernel.before & mask:
                kernel.before |= before
        return True

    def _of(self, mask: int) -> Kernel:
        return self._now[(mask & -mask).bit_length() - 1]

    def _waits(self, one: Kernel, other: Kernel) -> bool:
        """Whether one waits for something that waits for the other."""
        makers = {self._now[bit] for bit in _bits(one.after)} - {one, other}
        return any(maker.before & other.mask for maker in makers)


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
