"""What a cut head takes, before it is cut; symbolic sizes count as traced."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from hilore_planner.head_plan import Totals
from hilore_planner.passes import compat
from hilore_planner.passes.cost import Costs
from hilore_planner.passes.head.reach import MATMULS
from hilore_planner.passes.head.shapes import numel_hint, shape_of, tensor_of
from hilore_planner.passes.head.site import HeadSite

_KERNELS_PER_MATMUL = 2
"""Each product has a fused kernel before or after it."""
_DRAIN_NS = 30_000
"""Its last tiles leave part of a device idle: about this long for a large vocabulary, measured on an H200."""


def head_flops(site: HeadSite) -> int:
    """Floating-point operations of the head's matmuls, forward and backward, whatever the chunks."""
    return sum(_flops(site, node) for node in _matmuls(site))


def added_ns(site: HeadSite, chunks: int, totals: Totals, costs: Costs) -> int:
    """Time that a cut head takes more than the whole one, at the rates of ``costs``.

    Every chunk reads the weight again, and adds its product to the weight's gradient, which is read and written for
    that: its products hide it unless the chunk is short. Its kernels are launched, and drain. A rebuilt head makes its
    logits once more.
    """
    matmuls = _matmuls(site)
    sums = {
        leaving.node for sweep in site.passes for leaving in sweep.exits if leaving.kind == "sum"
    }
    added = {node: _total_bytes(node, totals) for node in sums.intersection(matmuls)}
    products_ns = sum(_product_ns(site, node, chunks, added, costs) for node in matmuls)
    whole_ns = sum(_product_ns(site, node, 1, added, costs) for node in matmuls)
    again = [node for node in matmuls if matmuls.count(node) > 1]
    again_ns = sum(_product_ns(site, node, 1, added, costs) for node in set(again))
    more = (chunks - 1) * len(matmuls)
    kernels_ns = more * (_KERNELS_PER_MATMUL * costs.launch_ns + _DRAIN_NS)
    return products_ns - whole_ns + again_ns + kernels_ns


def _matmuls(site: HeadSite) -> list[Node]:
    return [s.node for sweep in site.passes for s in sweep.steps if s.node.target in MATMULS]


def _product_ns(
    site: HeadSite, node: Node, chunks: int, added: Mapping[Node, int], costs: Costs
) -> int:
    """Time of one product in all chunks: of each, the larger of arithmetic and of moving what is not cut."""
    value, rows = tensor_of(node), compat.hint(site.rows)
    assert value is not None
    read = [arg for arg in node.all_input_nodes if rows not in map(compat.hint, shape_of(arg))]
    moved_bytes = sum(map(_bytes, read)) + 2 * added.get(node, 0)
    work_ns = costs.product_ns(value.dtype, round(_flops(site, node) / chunks))
    return chunks * max(costs.move_ns(moved_bytes), work_ns)


def _total_bytes(node: Node, totals: Totals) -> int:
    return max(_bytes(node), 4 * numel_hint(node) if totals == "float32" else 0)


def _bytes(node: Node) -> int:
    value = tensor_of(node)
    return 0 if value is None else numel_hint(node) * value.itemsize


def _flops(site: HeadSite, node: Node) -> int:
    inner = node.args[-1]
    assert isinstance(inner, Node)
    kept = compat.hint(site.rows) / compat.hint(shape_of(site.logits)[0])
    return round(2 * numel_hint(node) * compat.hint(shape_of(inner)[0]) * kept)
