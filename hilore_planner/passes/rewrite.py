"""Make the joint graph obey a placement: what is saved, what is a smaller copy, what is run again.

Recomputation is explicit: a unit that is not stored gets a twin in backward, made from the twins of its parents, so
that "recompute from a decoded parent" means exactly that. Extraction later moves every twin right before its first
reader. Where the placement is silent, nothing is rewritten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch.fx import Node

from hilore_planner.errors import PlanFileError
from hilore_planner.passes import compat
from hilore_planner.passes.codecs import Codec, codec_for
from hilore_planner.passes.emit import Traces, clone_node, inline
from hilore_planner.passes.marks import COPY
from hilore_planner.passes.ops import OpKind, tensor, work_readers
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit
from hilore_planner.solvers.problem import kept_codec


@functools.cache
def _decoder(codec: Codec, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """The same function each time, so that it is traced once."""
    return lambda *parts: codec.decode(parts, dtype)


class Rewriter:
    """Rewrites one joint graph in place; afterwards ``saved`` lists what backward gets from forward."""

    def __init__(self, graph: RecoveryGraph, placement: Mapping[str, str]) -> None:
        self.saved: dict[Node, None] = {}
        self._graph = graph
        self._placement = placement
        self._fx = graph.joint.gm.graph
        self._units: dict[int | None, RecoveryUnit] = {}
        for unit in graph.units.values():
            key = compat.storage_key(unit.maker)
            self._units[key if key is not None else id(unit.maker)] = unit
        inputs = {compat.storage_key(primal) for primal in graph.joint.primals}
        self._outputs = graph.joint.held_storages() - inputs
        self._traces: Traces = {}
        self._forward = frozenset(graph.joint.forward)
        self._shared: dict[Node, Node] = {}
        """Twins of units and their views: one for all readers."""
        self._own: dict[tuple[Node, object], Node] = {}
        """Twins of values that live in registers, without a unit or decoded: one for each step that reads them."""

    def run(self) -> list[Node]:
        """Rewrite; returns the saved nodes."""
        joint = self._graph.joint
        wanted = self._wanted()
        self._encode(wanted)
        with self._fx.inserting_before(joint.backward[0]):
            for node in joint.forward:
                if node in wanted and self._is_shared(node):
                    self._shared[node] = self._make_twin(node, wanted[node])
            for node in joint.backward:
                scope = self._scope(node)
                node.args = torch.fx.map_arg(node.args, lambda arg: self._twin(arg, scope))  # noqa: B023
                node.kwargs = torch.fx.map_arg(node.kwargs, lambda arg: self._twin(arg, scope))  # noqa: B023
        self._save_direct_outputs()
        return list(self.saved)

    def _unit(self, node: Node) -> RecoveryUnit | None:
        key = compat.storage_key(node)
        return self._units.get(key if key is not None else id(node))

    def _is_shared(self, node: Node) -> bool:
        """Whether all readers get the same twin; values without a unit are made by each reader's own kernel."""
        is_plain = compat.is_sym_node(node) or compat.storage_key(node) in self._outputs
        return is_plain or self._unit(node) is not None

    def _scope(self, node: Node) -> object:
        """The step a backward node belongs to; a view belongs to its first reader's."""
        while node not in self._graph.schedule.step_of and node.users:
            node = next(iter(node.users))
        return self._graph.schedule.step_of.get(node)

    def _action(self, node: Node) -> str:
        """What the placement says of a forward value; values without a unit are run again."""
        if compat.is_sym_node(node) or compat.storage_key(node) in self._outputs:
            return "store"
        unit = self._unit(node)
        if unit is None:
            return "recompute"
        action = self._placement.get(unit.name)
        if action is None:
            raise PlanFileError(
                f"the plan gives no action for unit {unit.name!r}, which backward needs; "
                "accepted: store, recompute, compress:CODEC"
            )
        is_view = node is not unit.maker
        return "recompute" if is_view else action

    def _wanted(self) -> dict[Node, str]:
        """Forward nodes that backward, or the replay of another, reads, with what is done for each."""
        primals = set(self._graph.joint.primals)
        stack = [a for node in self._graph.joint.backward for a in node.all_input_nodes]
        wanted: dict[Node, str] = {}
        while stack:
            node = stack.pop()
            if node in primals:
                self._save(node)
            if node not in self._forward or node in wanted:
                continue
            wanted[node] = self._action(node)
            if wanted[node] == "recompute":
                stack.extend(node.all_input_nodes)
        return wanted

    def _codec(self, node: Node, name: str) -> Codec:
        """The codec that a unit's value is kept by."""
        unit = self._unit(node)
        assert unit is not None
        return codec_for(unit, name)

    def _save(self, node: Node) -> None:
        self.saved[node] = None

    def _encode(self, wanted: Mapping[Node, str]) -> None:
        """Put every smaller copy right after the value it is made from.

        What reads a value decides about its codec, so that is asked before there are readers of this pass's own.
        """
        self._copies: dict[Node, tuple[Codec, tuple[Node, ...]]] = {}
        for node, action in wanted.items():
            name = kept_codec(action)
            if name is None:
                continue
            codec = self._codec(node, name)
            if self._is_read_later(node):
                compat.write_out(node)
            with self._fx.inserting_before(node.next):
                parts = inline(
                    self._fx,
                    codec.encode,
                    [node],
                    tag="is_forward",
                    origin=node,
                    traces=self._traces,
                )
            self._copies[node] = codec, parts
            self.saved |= dict.fromkeys(parts)

    def _is_read_later(self, node: Node) -> bool:
        """Whether fusible work of a later step reads a value made of several as large: stored, it would be in memory.

        Kept as a copy it need not be, and whoever reads a residual stream would make it again from all its parts.
        """
        schedule, kinds = self._graph.schedule, self._graph.schedule.kinds
        step = schedule.step_of.get(node)
        readers = [user for user in work_readers(node, kinds) if user in self._forward]
        if kinds[node] is not OpKind.FUSIBLE or all(
            kinds[user] is OpKind.EXTERN or schedule.step_of[user] == step for user in readers
        ):
            return False
        size, found = compat.hint(node.meta["val"].numel()), set[int | None]()
        stack, seen = list(node.all_input_nodes), {node}
        while stack and len(found) < 2:
            part = stack.pop()
            value = tensor(part)
            if part in seen or value is None or compat.hint(value.numel()) < size:
                continue
            seen.add(part)
            is_made = kinds.get(part, OpKind.EXTERN) is OpKind.EXTERN or compat.is_written_out(part)
            found |= {compat.storage_key(part)} if is_made else set()
            stack += [] if is_made else part.all_input_nodes
        return len(found) > 1

    def _make_twin(self, node: Node, action: str) -> Node:
        """The value backward reads in place of a forward node."""
        if action == "store":
            self._save(node)
            return node
        if action == "recompute":
            return clone_node(self._fx, node, lambda arg: self._twin(arg, node))
        return self._decoded(node)

    def _decoded(self, node: Node) -> Node:
        codec, parts = self._copies[node]
        (value,) = inline(
            self._fx,
            _decoder(codec, node.meta["val"].dtype),
            parts,
            tag="is_backward",
            origin=node,
            traces=self._traces,
        )
        if any(_is_in_groups(part, node) for part in parts):
            value.meta[COPY] = parts[0].name
        return value

    def _twin(self, node: Node, scope: object) -> Node:
        """What a reader in ``scope`` reads in place of ``node``: a step, or a node that is run again."""
        if not self._is_compressed(node) or not self._is_fusible(scope):
            is_shared = node in self._shared or self._is_shared(node)
            if is_shared or node not in self._forward:
                return self._shared.get(node, node)
        if (node, scope) not in self._own:
            self._own[node, scope] = (
                self._decoded(node)
                if node in self._copies
                else clone_node(self._fx, node, lambda arg: self._twin(arg, scope))
            )
        return self._own[node, scope]

    def _is_compressed(self, node: Node) -> bool:
        """Whether a value is kept as a smaller copy, or is a view of one that is."""
        unit = self._unit(node)
        return unit is not None and unit.maker in self._copies

    def _is_fusible(self, scope: object) -> bool:
        """Whether what reads in ``scope`` decodes in its own kernel, and has no use for a value that is written out."""
        schedule = self._graph.schedule
        if isinstance(scope, Node):
            return schedule.kinds.get(scope) is OpKind.FUSIBLE
        return isinstance(scope, int) and schedule.kinds[schedule.steps[scope][0]] is OpKind.FUSIBLE

    def _save_direct_outputs(self) -> None:
        """A forward value returned as a gradient is saved as it is."""
        forward = self._forward | set(self._graph.joint.primals)
        for node in self._graph.joint.backward_outputs:
            if node is not None and node in forward:
                self._save(node)


def _is_in_groups(part: Node, node: Node) -> bool:
    """Whether part of a value's smaller copy has several groups to a row."""
    kept, value = part.meta["val"], node.meta["val"]
    return bool(kept.dim() > value.dim() and kept.shape[-2] != 1)
