"""What a choice costs in time: the rules, and the roofline that prices by them without measuring.

A rebuilt value that stays in registers costs what its kernel reads more; one that is written out costs a kernel of its
own. Storing costs nothing where the forward writes the value out anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch.fx import GraphModule, Node

from hilore_planner.attribution import PricedStep
from hilore_planner.passes import compat
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.chains import Chain, Chains, Piece, pieces, value_bytes
from hilore_planner.passes.codecs import Codec
from hilore_planner.passes.devices import DeviceProfile
from hilore_planner.passes.ops import OpKind, flops, is_reduction, op_name, tensor
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit

_REGISTER_SHARE = 0.1
"""Arithmetic of a value made in registers, as a share of the time to move it: never quite free."""


class Costs(Protocol):
    """Times of the choices about a recovery graph, in nanoseconds."""

    @property
    def kind(self) -> str:
        """How the plan marks them: ``measured`` or ``roofline``."""

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """What is priced otherwise than ``kind`` says, and why."""

    @property
    def measuring_seconds(self) -> float:
        """Spent on finding out what was not known."""

    @property
    def launch_ns(self) -> int:
        """Time of a kernel beyond its work."""

    def move_ns(self, size_bytes: int) -> int:
        """Time to read or write this many bytes in a kernel that runs anyway."""

    def product_ns(self, dtype: torch.dtype, operations: int) -> int:
        """Time of a large product of so many floating-point operations; ``dtype`` is the result's."""

    def settle(self) -> bool:
        """Find out what was asked for and is not known well; if that was anything, prices have changed."""

    def recompute_ns(self, graph: RecoveryGraph, unit: RecoveryUnit) -> int:
        """Time to make a unit again from its parents."""

    def keep_ns(self, graph: RecoveryGraph, unit: RecoveryUnit) -> int:
        """Time that storing adds to the forward."""

    def encode_ns(
        self, graph: RecoveryGraph, unit: RecoveryUnit, codec: Codec, kept_bytes: int
    ) -> int:
        """Time to write a smaller copy."""

    def decode_ns(
        self, graph: RecoveryGraph, unit: RecoveryUnit, codec: Codec, kept_bytes: int
    ) -> int:
        """Time to make the value from its smaller copy."""

    def program_ns(self, graph: RecoveryGraph) -> int:
        """Time of the whole update, keeping what is stored and recomputing what is not left out."""

    def priced(self, *graphs: GraphModule) -> tuple[PricedStep, ...]:
        """What a plan's rewritten graphs run, each with its time."""


class PricedByPiece(ABC):
    """The rules, given the price of what runs by itself."""

    kind: str

    def __init__(self) -> None:
        self._last: tuple[RecoveryGraph, Chains] | None = None

    @property
    @abstractmethod
    def launch_ns(self) -> int:
        """Time of a kernel beyond its work."""

    @abstractmethod
    def node_ns(self, node: Node) -> int:
        """Time of a kernel of its own."""

    @abstractmethod
    def chain_ns(self, chain: Chain) -> int:
        """Time of fusible work."""

    @abstractmethod
    def move_ns(self, size_bytes: int) -> int:
        """Time to read or write this many bytes in a kernel that runs anyway."""

    @abstractmethod
    def encode_alone_ns(self, unit: RecoveryUnit, codec: Codec, kept_bytes: int) -> int:
        """Time of a kernel that reads a unit and writes its smaller copy."""

    @abstractmethod
    def decode_alone_ns(self, unit: RecoveryUnit, codec: Codec, kept_bytes: int) -> int:
        """Time of a kernel that reads a smaller copy and writes the unit."""

    def recompute_ns(self, graph: RecoveryGraph, unit: RecoveryUnit) -> int:
        """Time to make ``unit`` again from its parents."""
        kind = graph.schedule.kinds[unit.maker]
        if kind is OpKind.VIEW or not unit.can_recompute:
            return 0
        if kind is OpKind.EXTERN:
            return self.node_ns(unit.maker)
        chains = self.chains(graph)
        if unit.rebuilt_bytes == 0:
            more_bytes = max(0, chains.extra_reads_bytes(unit))
            return max(self._registers_ns(unit), self.move_ns(more_bytes))
        alone_ns, joined_bytes = self.chain_ns(chains.of_unit(unit)), chains.joined_bytes(unit)
        return alone_ns if joined_bytes is None else min(alone_ns, self.move_ns(joined_bytes))

    def keep_ns(self, graph: RecoveryGraph, unit: RecoveryUnit) -> int:
        """Time that storing adds: a write that fusion would have saved."""
        return 0 if self.chains(graph).is_written(unit) else self.move_ns(unit.kept_bytes)

    def encode_ns(
        self, graph: RecoveryGraph, unit: RecoveryUnit, codec: Codec, kept_bytes: int
    ) -> int:
        """Time to write the smaller copy; pointwise work that makes or reads the unit writes it in its own kernel."""
        alone_ns = self.encode_alone_ns(unit, codec, kept_bytes)
        if not _is_by_pointwise_work(graph, unit):
            return alone_ns
        saved_ns = self.move_ns(value_bytes(unit.maker)) + self.launch_ns
        return max(self.move_ns(kept_bytes), alone_ns - saved_ns)

    def decode_ns(
        self, graph: RecoveryGraph, unit: RecoveryUnit, codec: Codec, kept_bytes: int
    ) -> int:
        """Time to read the copy and write the value, where a kernel of its own reads it; others read less."""
        kinds = graph.schedule.kinds
        made_again = (graph.units[child].maker for child in graph.digraph.successors(unit.name))
        if not any(kinds[node] is OpKind.EXTERN for node in (*unit.readers, *made_again)):
            return self._registers_ns(unit)
        return self.decode_alone_ns(unit, codec, kept_bytes)

    def program_ns(self, graph: RecoveryGraph) -> int:
        """Time of the whole update when nothing is recomputed that has a unit, and nothing more is written for it."""
        return sum(
            self.chain_ns(piece) if isinstance(piece, Chain) else self.node_ns(piece)
            for piece in self.chains(graph).pieces
        )

    def priced(self, *graphs: GraphModule) -> tuple[PricedStep, ...]:
        """What a plan's forward and backward graphs run, in order."""
        found = [piece for graph in graphs for piece in pieces(graph)]
        self.look_at(found)
        return tuple(_priced_step(piece, self.piece_ns(piece)) for piece in found)

    @abstractmethod
    def look_at(self, found: Sequence[Piece]) -> None:
        """Learn what can be learnt about pieces that are going to be priced."""

    def piece_ns(self, piece: Piece) -> int:
        """Time of what runs by itself."""
        return self.chain_ns(piece) if isinstance(piece, Chain) else self.node_ns(piece)

    def _registers_ns(self, unit: RecoveryUnit) -> int:
        return max(1, self.move_ns(round(_REGISTER_SHARE * unit.kept_bytes)))

    def chains(self, graph: RecoveryGraph) -> Chains:
        """The chains of a graph, cut once."""
        if self._last is None or self._last[0] is not graph:
            self._last = graph, Chains(graph)
        return self._last[1]


def _is_by_pointwise_work(graph: RecoveryGraph, unit: RecoveryUnit) -> bool:
    """Whether the forward makes or reads a unit value by value: what sums rows goes over it otherwise than groups."""
    schedule = graph.schedule
    storage = schedule.storages[compat.storage_key(unit.maker) or 0]
    steps = {
        schedule.step_of[node]
        for node in (unit.maker, *storage.readers)
        if node in schedule.step_of
    }
    return any(
        schedule.kinds[schedule.steps[step][0]] is OpKind.FUSIBLE
        and not any(map(is_reduction, schedule.steps[step]))
        for step in steps
        if step < schedule.first_backward
    )


def _priced_step(piece: Piece, time_ns: int) -> PricedStep:
    is_fused = isinstance(piece, Chain)
    nodes, made = (piece.nodes, piece.outputs) if isinstance(piece, Chain) else ((piece,), (piece,))
    inputs = piece.inputs if isinstance(piece, Chain) else piece.all_input_nodes
    names = list(dict.fromkeys(op_name(node) for node in nodes))
    values = [value for node in made if (value := tensor(node)) is not None]
    read = [value for node in inputs if (value := tensor(node)) is not None]
    shapes = tuple(map(_shape, read))
    text = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    text += (
        f" -> {', '.join(map(_described, values[:2]))}"
        if is_fused
        else (f" {', '.join(map(_described, read[:3]))}")
    )
    lines = (source_line(node) for node in reversed(nodes))
    source = next((line for line in lines if line), "")
    return PricedStep("" if is_fused else names[0], text, shapes, time_ns, source)


def _shape(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(compat.hint, value.shape))


def _described(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(_shape(value))}"


class Roofline(PricedByPiece):
    """Times from a device profile: the larger of arithmetic and traffic, plus the launch."""

    kind = "roofline"
    measuring_seconds = 0.0

    def __init__(self, profile: DeviceProfile) -> None:
        super().__init__()
        self.profile = profile
        self._known_ns: dict[Node, int] = {}

    @property
    def launch_ns(self) -> int:
        """The profile's."""
        return self.profile.launch_ns

    def settle(self) -> bool:
        """Nothing is measured."""
        return False

    def look_at(self, found: Sequence[Piece]) -> None:
        """Nothing is learnt."""

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Nothing: that all is estimated is what ``kind`` says."""
        return ()

    def move_ns(self, size_bytes: int) -> int:
        """Time to move this many bytes."""
        return round(1e9 * size_bytes / self.profile.bytes_per_second)

    def product_ns(self, dtype: torch.dtype | None, operations: int) -> int:
        """Time of so many operations."""
        return round(1e9 * operations / self.profile.flops_per_second(dtype))

    def node_ns(self, node: Node) -> int:
        """Time of an op on its own."""
        if node not in self._known_ns:
            self._known_ns[node] = self._node_ns(node)
        return self._known_ns[node]

    def _node_ns(self, node: Node) -> int:
        moved = sum(map(value_bytes, (node, *node.all_input_nodes)))
        value = tensor(node)
        reference = value if value is not None else tensor(node.all_input_nodes[0])
        dtype = None if reference is None else reference.dtype
        return max(self.product_ns(dtype, flops(node)), self.move_ns(moved)) + self.launch_ns

    def chain_ns(self, chain: Chain) -> int:
        """Time of one kernel that reads the inputs and writes the outputs."""
        return self.move_ns(chain.moved_bytes) + self.launch_ns if chain.nodes else 0

    def encode_alone_ns(self, unit: RecoveryUnit, codec: Codec, kept_bytes: int) -> int:
        """Time to read the value and write the copy."""
        return self.move_ns(value_bytes(unit.maker) + kept_bytes) + self.launch_ns

    def decode_alone_ns(self, unit: RecoveryUnit, codec: Codec, kept_bytes: int) -> int:
        """Time to read the copy and write the value."""
        return self.move_ns(kept_bytes + unit.rebuilt_bytes) + self.launch_ns
