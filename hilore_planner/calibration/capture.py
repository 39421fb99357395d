"""The joint graph of an update, as plans see it, and the inputs it is given for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from hilore_planner.errors import RegionError
from hilore_planner.offline.capture import capture
from hilore_planner.partitioner import CutSettings, prepare
from hilore_planner.passes.attribution import source_line
from hilore_planner.passes.ops import is_random, op_name, tensor
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, build_units

Inputs = tuple[Any, ...]
"""What a joint graph's primals stand for: parameters, buffers and the batch."""


@dataclass(frozen=True, slots=True)
class CapturedUpdate:
    """An update's graph of units, and the inputs it was traced with.

    Attributes:
        leaves: of the batch it was traced with.
    """

    graph: RecoveryGraph
    traced: Inputs
    leaves: tuple[Any, ...]

    @classmethod
    def of(
        cls, update: Callable[..., Any], batch: Sequence[Any], settings: CutSettings
    ) -> CapturedUpdate:
        """Trace ``update``, which must be one graph with a scalar loss.

        Raises:
            RegionError: it has graph breaks, no scalar loss, or random values.
        """
        # Whether products gain by padding would be timed; run op by op they are not compiled.
        found = capture(update, batch, inductor={"shape_padding": False})
        joint, _ = prepare(
            found.gm,
            settings,
            num_forward_outputs=found.num_forward_outputs,
            static_input_indices=found.static_input_indices,
        )
        graph = build_units(joint, build_schedule(joint))
        _check(graph, len(found.inputs))
        return cls(graph, found.inputs, tuple(tree_leaves(tuple(batch))))

    def inputs(self, batch: Sequence[Any]) -> Inputs:
        """What the graph's primals are for another batch.

        Raises:
            RegionError: the batch is of other shapes, or differs in something that is no tensor.
        """
        leaves = tree_leaves(tuple(batch))
        kinds, expected = list(map(_kind, leaves)), list(map(_kind, self.leaves))
        if kinds != expected:
            raise RegionError(
                f"a batch is of {kinds}, another was of {expected}: the update would be another graph; accepted: "
                "batches of one shape"
            )
        given = {id(old): new for old, new in zip(self.leaves, leaves, strict=True)}
        return tuple(given.get(id(value), value) for value in self.traced)


def _kind(leaf: Any) -> Any:
    """What of a batch's part a graph depends on: all but the values of a tensor."""
    return (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf


def _check(graph: RecoveryGraph, inputs: int) -> None:
    joint = graph.joint
    for node in joint.forward:
        if is_random(node) or "inductor_seed" in op_name(node):
            raise RegionError(
                f"the update draws random numbers ({op_name(node)} at {source_line(node) or node.name}); "
                "calibrate it with dropout off"
            )
    if len(joint.primals) != inputs:
        raise RegionError(
            f"the update cannot be calibrated: its graph has {len(joint.primals)} inputs for {inputs} given "
            "(inputs that share memory)"
        )
    tangents = [tensor(node) for node in joint.tangents]
    if len(tangents) != 1 or tangents[0] is None or tangents[0].dim() != 0:
        shapes = [tuple(value.shape) for value in tangents if value is not None]
        raise RegionError(
            f"the update has outputs of shapes {shapes} that gradients come in for; accepted: one graph whose "
            "only differentiable output is the scalar loss"
        )
