"""What a cut head costs, before it is cut; symbolic sizes count as traced."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from hilore_planner.passes import compat
from hilore_planner.passes.head.operands import operands
from hilore_planner.passes.head.reach import MATMULS
from hilore_planner.passes.head.shapes import numel_hint, shape_of, tensor_of
from hilore_planner.passes.head.site import ChunkPass, HeadSite
from hilore_planner.passes.head.slices import static_bounds


@dataclass(frozen=True, slots=True)
class HeadBytes:
    """Bytes a cut head holds."""

    saved_bytes: int
    """What the head hands from forward to backward: gradients (early) or row values (rebuild)."""
    workspace_bytes: int
    """The most its own values take while it runs, what it hands on included."""


def head_bytes(site: HeadSite, chunks: int) -> HeadBytes:
    """Memory of a head cut into ``chunks``, pointwise work fused into its matmuls' neighbours.

    Alive together are a chunk's matmul results and operands of vocabulary size, two running totals
    of each sum (the old one while the new one is made), and all chunks of what leaves.
    """
    saved = sum(_bytes(leaving.node) for leaving in site.passes[0].exits)
    return HeadBytes(saved, max(_workspace(site, sweep, chunks) for sweep in site.passes))


def head_flops(site: HeadSite) -> int:
    """Floating-point operations of the head's matmuls, forward and backward, whatever the chunks."""
    matmuls = (s.node for sweep in site.passes for s in sweep.steps if s.node.target in MATMULS)
    kept = compat.hint(site.rows) / compat.hint(shape_of(site.logits)[0])
    return sum(round(_flops(node) * kept) for node in matmuls)


def _workspace(site: HeadSite, sweep: ChunkPass, chunks: int) -> int:
    rows = compat.hint(site.rows)
    (_, longest), *_ = static_bounds(rows, min(chunks, rows))
    wide: set[Node] = set()
    for step in sweep.steps:
        if step.node.target in MATMULS:
            touched = (step.node, *(operand.node for operand in operands(step.recipe)))
            inside = {other.node for other in sweep.steps}
            wide |= {
                n for n in touched if n in inside and compat.hint(site.vocabulary) in _hints(n)
            }
    sums = {leaving.node for leaving in sweep.exits if leaving.kind == "sum"}
    per_chunk = sum(_bytes(node) for node in _storages(wide - sums)) * longest // rows
    leaving_bytes = sum(_bytes(leaving.node) for leaving in sweep.exits)
    return per_chunk + leaving_bytes + sum(_bytes(node) for node in sums)


def _storages(nodes: set[Node]) -> list[Node]:
    return list({compat.storage_key(node): node for node in nodes}.values())


def _hints(node: Node) -> list[int]:
    return [compat.hint(size) for size in shape_of(node)]


def _bytes(node: Node) -> int:
    value = tensor_of(node)
    return 0 if value is None else numel_hint(node) * value.itemsize


def _flops(node: Node) -> int:
    inner = node.args[-1]
    assert isinstance(inner, Node)
    return 2 * numel_hint(node) * compat.hint(shape_of(inner)[0])
