"""What a choice costs in time, by roofline: the larger of arithmetic and traffic, plus the launch.

A rebuilt value that stays in registers costs only the reading of its parents; one that is written out costs the
write, and a kernel launch. Storing costs nothing where the forward writes the value out anyway.
"""

from __future__ import annotations

from torch.fx import Node

from hilore_planner.passes.devices import DeviceProfile
from hilore_planner.passes.ops import OpKind, flops, tensor
from hilore_planner.passes.schedule import Schedule, roofline_bytes
from hilore_planner.passes.units import RecoveryGraph, RecoveryUnit

_REGISTER_SHARE = 0.1
"""Arithmetic of a fused replay, as a share of the time to read the value: never quite free."""


class Roofline:
    """Times from a device profile; ``kind`` marks them as estimated in the plan."""

    kind = "roofline"

    def __init__(self, profile: DeviceProfile) -> None:
        self.profile = profile

    def move_ns(self, size_bytes: float) -> int:
        """Time to move this many bytes."""
        return round(1e9 * size_bytes / self.profile.bytes_per_second)

    def node_ns(self, node: Node) -> int:
        """Time of an extern op on its own."""
        value = tensor(node)
        moved = sum(
            roofline_bytes(v) for n in (node, *node.all_input_nodes) if (v := tensor(n)) is not None
        )
        reference = value if value is not None else tensor(node.all_input_nodes[0])
        rate = self.profile.flops_per_second(reference.dtype if reference is not None else None)  # type: ignore[arg-type]
        return max(round(1e9 * flops(node) / rate), self.move_ns(moved)) + self.profile.launch_ns

    def recompute_ns(self, graph: RecoveryGraph, unit: RecoveryUnit) -> int:
        """Time to make ``unit`` again from its parents."""
        kind = graph.schedule.kinds[unit.maker]
        if kind is OpKind.VIEW:
            return 0
        if kind is OpKind.EXTERN:
            return self.node_ns(unit.maker)
        if unit.rebuilt_bytes == 0:
            return max(1, round(_REGISTER_SHARE * self.move_ns(unit.kept_bytes)))
        read = sum(graph.units[parent].kept_bytes for parent in graph.parents(unit.name))
        return (
            self.move_ns(unit.rebuilt_bytes + min(read, 2 * unit.kept_bytes))
            + self.profile.launch_ns
        )

    def keep_ns(self, unit: RecoveryUnit) -> int:
        """Time that storing adds: a write that fusion would have saved."""
        return 0 if unit.is_written_in_forward else self.move_ns(unit.kept_bytes)

    def encode_ns(self, graph: RecoveryGraph, unit: RecoveryUnit, kept_bytes: int) -> int:
        """Time to write the smaller copy; an extern op's output is read once more for it."""
        reads = unit.kept_bytes if graph.schedule.kinds[unit.maker] is not OpKind.FUSIBLE else 0
        return self.move_ns(kept_bytes + reads)

    def decode_ns(self, unit: RecoveryUnit, kept_bytes: int) -> int:
        """Time to read the copy and write the value where its reader is a kernel of its own."""
        if unit.rebuilt_bytes == 0:
            return max(1, round(_REGISTER_SHARE * self.move_ns(unit.kept_bytes)))
        return self.move_ns(kept_bytes + unit.rebuilt_bytes) + self.profile.launch_ns

    def program_ns(self, schedule: Schedule) -> int:
        """Time of the whole update when nothing is recomputed."""
        total = 0
        for step in schedule.steps:
            if schedule.kinds[step[0]] is OpKind.EXTERN:
                total += self.node_ns(step[0])
            else:
                total += self._fused_ns(schedule, step)
        return total

    def _fused_ns(self, schedule: Schedule, step: tuple[Node, ...]) -> int:
        """A fused step reads what comes from outside it and writes what is read outside it."""
        inside = set(step)
        outer = {arg for node in step for arg in node.all_input_nodes if arg not in inside}
        values = [tensor(node) for node in outer]
        written = [
            tensor(node)
            for node in step
            if any(user in schedule.step_of and user not in inside for user in node.users)
        ]
        moved = sum(roofline_bytes(v) for v in (*values, *written) if v is not None)
        return self.move_ns(moved) + self.profile.launch_ns
