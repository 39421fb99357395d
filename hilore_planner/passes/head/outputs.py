"""Which outputs of the forward a head feeds, and which of them can be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from hilore_planner.passes.head.find import Head
from hilore_planner.passes.head.reach import ancestors


def logging_only(head: Head) -> tuple[Node, ...]:
    """Values made of logits that no gradient comes back to, in program order."""
    graded = [node for desc, node in _outputs(head) if desc in _differentiable(head)]
    used = ancestors(head.graph, graded) | set(graded)
    used |= ancestors(head.graph, head.dependent)
    forward = head.closing - head.dependent - used
    return tuple(node for node in head.order if node in forward)


def several_outputs(head: Head, tangents: Sequence[Node]) -> str:
    """Says which outputs of the forward reach the head with a tangent each."""
    names = [str(getattr(tangent.meta.get("desc"), "output", tangent.name)) for tangent in tangents]
    return (
        f"several outputs that require grad reach the head ({', '.join(names)}): detach those that "
        "are only logged"
    )


def _differentiable(head: Head) -> list[Any]:
    """Descriptions of the forward outputs that have a tangent."""
    return [getattr(tangent.meta.get("desc"), "output", None) for tangent in head.tangents]


def _outputs(head: Head) -> list[tuple[Any, Node]]:
    output = head.order[-1]
    values: Any = output.args[0]
    descriptions = output.meta.get("desc") or [None] * len(values)
    return [pair for pair in zip(descriptions, values, strict=True) if isinstance(pair[1], Node)]
