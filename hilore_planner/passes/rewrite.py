"""Make the joint graph obey a placement: what is saved, what is a smaller copy, what is run again.

Recomputation is explicit: a unit that is not stored gets a twin in backward, made from the twins of its parents, so
that "recompute from a decoded parent" means exactly that. Extraction later moves every twin right before its first
reader. Where the placement is silent, nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from hilore_planner.errors import PlanFileError
from hilore_planner.passes import compat
from hilore_planner.passes.codecs import codec_named
from hilore_planner.passes.emit import clone_node, inline
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit


class Rewriter:
    """Rewrites one joint graph in place; afterwards ``saved`` lists what backward gets from forward."""

    def __init__(self, graph: RecoveryGraph, placement: Mapping[str, str]) -> None:
        self.saved: list[Node] = []
        self._graph = graph
        self._placement = placement
        self._fx = graph.joint.gm.graph
        self._held = graph.joint.held_storages()
        self._units: dict[int | None, RecoveryUnit] = {}
        for unit in graph.units.values():
            key = compat.storage_key(unit.maker)
            self._units[key if key is not None else id(unit.maker)] = unit
        self._twins: dict[Node, Node] = {}

    def run(self) -> list[Node]:
        """Rewrite; returns the saved nodes."""
        joint = self._graph.joint
        wanted = self._wanted()
        boundary = joint.backward[0]
        self._encode(wanted)
        with self._fx.inserting_before(boundary):
            for node in joint.forward:
                if node in wanted:
                    self._twins[node] = self._make_twin(node)
        for node in joint.backward:
            node.args = torch.fx.map_arg(node.args, self._twin)
            node.kwargs = torch.fx.map_arg(node.kwargs, self._twin)
        self._save_direct_outputs()
        joint.gm.recompile()
        return self.saved

    def _action(self, node: Node) -> str:
        """What the placement says of a forward value; values without a unit are run again."""
        if compat.is_sym_node(node):
            return "store"
        key = compat.storage_key(node)
        if key in self._held and self._is_output(node):
            return "store"
        unit = self._units.get(key if key is not None else id(node))
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

    def _is_output(self, node: Node) -> bool:
        """Held values that are made by the graph; views of inputs are made again for nothing."""
        inputs = {compat.storage_key(primal) for primal in self._graph.joint.primals}
        return compat.storage_key(node) not in inputs

    def _wanted(self) -> dict[Node, str]:
        """Forward nodes that backward, or the replay of another, reads, with what is done for each."""
        forward = set(self._graph.joint.forward)
        stack = [a for node in self._graph.joint.backward for a in node.all_input_nodes]
        wanted: dict[Node, str] = {}
        while stack:
            node = stack.pop()
            if node.op == "placeholder" and node in self._graph.joint.primals:
                self._save(node)
            if node not in forward or node in wanted:
                continue
            wanted[node] = self._action(node)
            if wanted[node] == "recompute":
                stack.extend(node.all_input_nodes)
        return wanted

    def _save(self, node: Node) -> None:
        if node not in self.saved:
            self.saved.append(node)

    def _encode(self, wanted: Mapping[Node, str]) -> None:
        """Put every smaller copy right after the value it is made from."""
        self._parts: dict[Node, tuple[Node, ...]] = {}
        for node, action in wanted.items():
            if not action.startswith("compress:"):
                continue
            codec = codec_named(action.removeprefix("compress:"))
            with self._fx.inserting_before(node.next):
                parts = inline(self._fx, codec.encode, [node], tag="is_forward", origin=node)
            self._parts[node] = parts
            self.saved.extend(parts)

    def _make_twin(self, node: Node) -> Node:
        """The value backward reads in place of a forward node."""
        action = self._action(node)
        if action == "store":
            self._save(node)
            return node
        if action == "recompute":
            return clone_node(self._fx, node, self._twin)
        codec, dtype = codec_named(action.removeprefix("compress:")), node.meta["val"].dtype
        (value,) = inline(
            self._fx,
            lambda *parts: codec.decode(parts, dtype),
            self._parts[node],
            tag="is_backward",
            origin=node,
        )
        return value

    def _twin(self, node: Node) -> Node:
        return self._twins.get(node, node)

    def _save_direct_outputs(self) -> None:
        """A forward value returned as a gradient is saved as it is."""
        forward = set(self._graph.joint.forward) | set(self._graph.joint.primals)
        for node in self._graph.joint.backward_outputs:
            if node is not None and node in forward:
                self._save(node)
