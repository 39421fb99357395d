"""Recovery units: what backward may keep, keep smaller, or make again.

A unit is one storage made by the forward (views belong to it). The graph of units has an edge p -> u where recomputing
u reads p. Values that are always at hand (inputs, parameters, outputs the caller holds) are not units. A multi-output
op is a unit without bytes that cannot be stored; its outputs read it, so that recomputing any output runs it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import networkx as nx
from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.attribution import Origin, attribute
from hilore_planner.passes.graph import JointGraph
from hilore_planner.passes.ops import OpKind, is_reduction, replay_forbidden
from hilore_planner.passes.overwrite import Ending, overwritten, temporaries
from hilore_planner.passes.schedule import Schedule, Storage, held_values, is_joined

SMALL_BYTES = 64 * 1024
_NEGLIGIBLE = 16
"""A parent this many times smaller than a unit does not count when deciding to fold."""


@dataclass(frozen=True, slots=True)
class RecoveryUnit:
    """One candidate, with everything a decision about it needs."""

    origin: Origin
    maker: Node
    """The node whose output is the unit's storage, or the multi-output op."""
    nodes: tuple[Node, ...]
    """The maker and its views in the forward."""
    kept_bytes: int
    rebuilt_bytes: int
    made_at: int
    released_at: int
    read_at: tuple[int, ...]
    readers: tuple[Node, ...]
    """Backward nodes that read it, directly or through folded units."""
    is_written_in_forward: bool
    can_store: bool = True
    can_recompute: bool = True
    forced: str = ""

    @property
    def name(self) -> str:
        """Stable name."""
        return self.origin.name


@dataclass(frozen=True, slots=True)
class RecoveryGraph:
    """Units in program order, and which of them recomputing another reads."""

    joint: JointGraph
    schedule: Schedule
    digraph: nx.DiGraph[str]
    units: dict[str, RecoveryUnit]

    def parents(self, name: str) -> tuple[str, ...]:
        """Units that recomputing ``name`` reads, in program order."""
        return tuple(sorted(self.digraph.predecessors(name), key=self._made))

    def endings(self) -> Iterator[Ending]:
        """The units that are a buffer where backward reads them last, whatever is decided."""
        for unit in self.units.values():
            if unit.read_at and unit.rebuilt_bytes:
                yield Ending(_key(unit.maker), unit.kept_bytes, unit.read_at[-1], unit.readers)

    def _made(self, name: str) -> tuple[int, str]:
        return self.units[name].made_at, name


def build_units(
    joint: JointGraph, schedule: Schedule, *, small_bytes: int = SMALL_BYTES
) -> RecoveryGraph:
    """Find the units of a joint graph, force what must be forced, and fold what need not be decided."""
    origins = attribute(joint.forward)
    held = joint.held_storages()
    values = tuple(held_values(joint, schedule))
    gone = overwritten(schedule, values, temporaries(schedule, values))
    digraph: nx.DiGraph[str] = nx.DiGraph()
    units: dict[str, RecoveryUnit] = {}
    owner: dict[int | Node, str] = {}
    for node in joint.forward:
        unit = _unit(joint, schedule, origins, node, held, small_bytes)
        if unit is None:
            continue
        if (_key(node), unit.released_at) in gone:
            unit = replace(unit, released_at=unit.released_at - 1)
        units[unit.name] = unit
        digraph.add_node(unit.name)
        owner[node if unit.kept_bytes == 0 and not unit.can_store else _key(node)] = unit.name
        parents = {owner.get(arg, owner.get(_key(arg), "")) for arg in node.all_input_nodes}
        digraph.add_edges_from((parent, unit.name) for parent in parents if parent)
    graph = RecoveryGraph(joint, schedule, digraph, units)
    return _set_rebuilt_bytes(_prune(_fold(_force_derived(graph))))


def _key(node: Node) -> int:
    key = compat.storage_key(node)
    return -1 if key is None else key


def _unit(
    joint: JointGraph,
    schedule: Schedule,
    origins: dict[Node, Origin],
    node: Node,
    held: frozenset[int],
    small_bytes: int,
) -> RecoveryUnit | None:
    """The unit a forward node makes; None for views, symbols and values always at hand."""
    is_output = compat.is_getitem(node)
    if compat.is_sym_node(node) or (schedule.kinds[node] is OpKind.VIEW and not is_output):
        return None
    storage = schedule.storages.get(_key(node))
    if storage is None:
        is_kernel = not is_output and node in schedule.step_of
        return _op_unit(joint, schedule, origins[node], node) if is_kernel else None
    if storage.key in held or storage.maker is not node:
        return None
    return _storage_unit(joint, schedule, origins, storage, small_bytes)


def _op_unit(joint: JointGraph, schedule: Schedule, origin: Origin, node: Node) -> RecoveryUnit:
    """The unit of a multi-output op: nothing to keep, only to run again."""
    forbidden, made_at = _forbidden(joint, node), schedule.step_of[node]
    return RecoveryUnit(
        origin=origin,
        maker=node,
        nodes=(node,),
        kept_bytes=0,
        rebuilt_bytes=0,
        made_at=made_at,
        released_at=made_at,
        read_at=(),
        readers=(),
        is_written_in_forward=False,
        can_store=False,
        can_recompute=not forbidden,
        forced=forbidden,
    )


def _storage_unit(
    joint: JointGraph,
    schedule: Schedule,
    origins: dict[Node, Origin],
    storage: Storage,
    small_bytes: int,
) -> RecoveryUnit:
    maker, boundary = storage.maker, schedule.first_backward
    worker: Node = maker.args[0] if compat.is_getitem(maker) else maker  # type: ignore[assignment]
    forbidden, tag = _forbidden(joint, worker), joint.tags.get(worker, "")
    readers = tuple(n for n in storage.readers if schedule.step_of[n] >= boundary)
    forward_readers = [n for n in storage.readers if schedule.step_of[n] < boundary]
    made_at = schedule.maker_step(storage)
    written = schedule.is_written_out(storage, forward_readers, made_at)
    last = max([made_at, *(schedule.step_of[n] for n in forward_readers)])
    is_small = storage.bytes < small_bytes and bool(readers) and tag != "recompute"
    return RecoveryUnit(
        origin=origins[maker],
        maker=maker,
        nodes=tuple(n for n in storage.nodes if n in origins),
        kept_bytes=storage.bytes,
        rebuilt_bytes=storage.bytes,
        made_at=made_at,
        released_at=last if written else made_at - 1,
        read_at=tuple(sorted({schedule.step_of[n] for n in readers})),
        readers=readers,
        is_written_in_forward=written,
        can_store=tag != "recompute" or bool(forbidden),
        can_recompute=not forbidden and not is_small,
        forced=forbidden or _reason(tag, is_small),
    )


def _reason(tag: str, is_small: bool) -> str:
    if tag:
        return "checkpoint policy"
    return "small" if is_small else ""


def _forbidden(joint: JointGraph, node: Node) -> str:
    reason = replay_forbidden(node)
    if not reason and joint.tags.get(node) == "store":
        reason = "checkpoint policy"
    if not reason and compat.must_save(node):
        reason = "must be saved"
    mutated = {_key(argument) for argument in joint.mutated_inputs}
    if not reason and mutated and any(_key(arg) in mutated for arg in node.all_input_nodes):
        reason = "reads an input that is overwritten"
    return reason


def _force_derived(graph: RecoveryGraph) -> RecoveryGraph:
    """Copies of parameters (casts, layout changes) are rebuilt: keeping one keeps a weight twice."""
    parameters = {_key(node) for node in graph.joint.static_inputs}
    derived: set[int] = set(parameters)
    units = dict(graph.units)
    for name, unit in graph.units.items():
        inputs = unit.maker.all_input_nodes
        if (
            len(inputs) == 1
            and _key(inputs[0]) in derived
            and unit.can_recompute
            and graph.schedule.kinds[unit.maker] is OpKind.FUSIBLE
            and not is_reduction(unit.maker)
        ):
            derived.add(_key(unit.maker))
            units[name] = replace(unit, can_store=False, forced="copy of a parameter")
    return replace(graph, units=units)


def _fold(graph: RecoveryGraph) -> RecoveryGraph:
    """Drop units that only ever exist in registers and are no smaller than what they are made from."""
    digraph, units = graph.digraph.copy(), dict(graph.units)
    for name in list(units):
        unit = units[name]
        parents = list(digraph.predecessors(name))
        children = list(digraph.successors(name))
        if not _is_foldable(graph, units, unit, parents, children):
            continue
        for parent in parents:
            grown = units[parent]
            readers = tuple(dict.fromkeys((*grown.readers, *unit.readers)))
            steps = tuple(sorted({*grown.read_at, *unit.read_at}))
            units[parent] = replace(grown, readers=readers, read_at=steps)
            digraph.add_edges_from((parent, child) for child in children)
        digraph.remove_node(name)
        del units[name]
    return replace(graph, digraph=digraph, units=units)


def _is_foldable(
    graph: RecoveryGraph,
    units: dict[str, RecoveryUnit],
    unit: RecoveryUnit,
    parents: Iterable[str],
    children: Iterable[str],
) -> bool:
    kinds = graph.schedule.kinds
    if not unit.can_recompute or kinds.get(unit.maker) is not OpKind.FUSIBLE:
        return False
    if not unit.can_store or is_reduction(unit.maker) or is_joined(unit.maker):
        return False
    uses = (*unit.readers, *(units[child].maker for child in children))
    if any(kinds.get(node) is not OpKind.FUSIBLE for node in uses):
        return False
    sizes = [units[parent].kept_bytes for parent in parents if units[parent].can_store]
    large = [size for size in sizes if size * _NEGLIGIBLE > unit.kept_bytes]
    if not unit.readers and len(large) == 1:
        # Interior, and made from one value: half of it (rope's negated half) is no use without the rest.
        return large[0] <= 2 * unit.kept_bytes
    return sum(large) <= unit.kept_bytes


def _prune(graph: RecoveryGraph) -> RecoveryGraph:
    """Keep what backward reads and what recomputing it could read."""
    needed: set[str] = set()
    for name in reversed(list(graph.units)):
        unit = graph.units[name]
        children = (graph.units[child] for child in graph.digraph.successors(name))
        if unit.readers or any(c.name in needed and c.can_recompute for c in children):
            needed.add(name)
    units = {name: unit for name, unit in graph.units.items() if name in needed}
    digraph: nx.DiGraph[str] = nx.DiGraph(graph.digraph.subgraph(needed))
    return replace(graph, digraph=digraph, units=units)


def _set_rebuilt_bytes(graph: RecoveryGraph) -> RecoveryGraph:
    """A rebuilt value stays in registers only where one fused step holds everything that reads it."""
    units: dict[str, RecoveryUnit] = {}
    home: dict[str, int | None] = {}
    for name in reversed(list(graph.units)):
        unit = graph.units[name]
        children = graph.digraph.successors(name)
        steps: set[int | None] = {graph.schedule.step_of[node] for node in unit.readers}
        steps |= {home[child] for child in children}
        is_register = len(steps) == 1 and None not in steps and _is_fused(graph, unit)
        home[name] = steps.pop() if is_register else None
        units[name] = replace(unit, rebuilt_bytes=0 if is_register else unit.kept_bytes)
    return replace(graph, units={name: units[name] for name in graph.units})


def _is_fused(graph: RecoveryGraph, unit: RecoveryUnit) -> bool:
    """Whether neither the unit's maker nor any reader is a kernel of its own, nor its value a buffer in any case."""
    kinds = graph.schedule.kinds
    if is_joined(unit.maker):
        return False
    origin = unit.maker.args[0] if compat.is_getitem(unit.maker) else unit.maker
    children = (graph.units[child].maker for child in graph.digraph.successors(unit.name))
    return all(kinds.get(node) is OpKind.FUSIBLE for node in (origin, *unit.readers, *children))  # type: ignore[arg-type]
