"""What operations take while they run, counted in a placement problem.

Beyond its inputs and outputs attention allocates for as long as it runs: accumulators, halves of a gradient, copies in
another layout. On the CPU so do products in half precision. No graph shows that; the device does. On a GPU products
work in what their library keeps for good.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node, map_arg

from hilore_planner.passes.ops import OpKind, kind_of, tensor
from hilore_planner.passes.schedule import Schedule
from hilore_planner.peak.dry_run import Workspaces
from hilore_planner.solvers.problem import PlacementProblem


def with_transients(
    problem: PlacementProblem, schedule: Schedule, workspaces: Workspaces
) -> PlacementProblem:
    """The problem with what operations take at the steps where they run.

    Where sizes are symbolic nothing is counted: what the compiled code takes is learnt from it.
    """
    positions = tuple(
        replace(position, fixed_bytes=position.fixed_bytes + _taken_bytes(step[0], workspaces))
        for position, step in zip(problem.positions, schedule.steps, strict=True)
    )
    return replace(problem, positions=positions)


def _taken_bytes(node: Node, workspaces: Workspaces) -> int:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or not _is_asked(node, op):
        return 0
    args, kwargs = map_arg((node.args, node.kwargs), lambda value: value.meta["val"])
    if any(_is_symbolic(argument.meta["val"]) for argument in node.all_input_nodes):
        return 0
    return workspaces.transient_bytes(op, args, kwargs)


def _is_asked(node: Node, op: torch._ops.OpOverload) -> bool:
    if "attention" in op._opname:
        return True
    value = tensor(node)
    return kind_of(node) is OpKind.EXTERN and value is not None and value.device.type == "cpu"


def _is_symbolic(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, torch.SymInt)
