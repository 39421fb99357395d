"""What each operation becomes on a chunk of rows.

``recipe(node, rows)`` answers: if ``node``'s value has its rows at ``rows``, what must its operands
look like, and which call yields the chunk? It raises :class:`NotRowWiseError` where rows mix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from hilore_planner.passes.head import rules_dims as dims
from hilore_planner.passes.head import rules_layout as layout
from hilore_planner.passes.head.site import NotRowWiseError, Recipe, Rows

aten = torch.ops.aten


def recipe(node: Node, rows: Rows) -> Recipe:
    """How to make the chunk of ``node`` whose rows lie at ``rows``."""
    rule = _RULES.get(node.target)
    if rule is not None:
        return rule(node, rows)
    tags = getattr(node.target, "tags", ())
    if torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags:
        return layout.pointwise(node, rows)
    raise NotRowWiseError(node, f"{node.target} is not known to work row by row")


REDUCTIONS = (
    aten.amax.default,
    aten.amin.default,
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.argmax.default,
    aten.logsumexp.default,
    aten.any.dim,
    aten.any.dims,
    aten.all.dim,
    aten.all.dims,
    aten.prod.dim_int,
)

_RULES: dict[Any, Callable[[Node, Rows], Recipe]] = {
    aten.full.default: layout.full,
    aten.expand.default: layout.expand,
    aten.view.default: layout.view,
    aten.reshape.default: layout.view,
    aten._unsafe_view.default: layout.view,
    aten.alias.default: layout.pointwise,
    aten.detach.default: layout.pointwise,
    aten.unsqueeze.default: layout.unsqueeze,
    aten.permute.default: layout.permute,
    aten.constant_pad_nd.default: layout.pad,
    aten.select.int: dims.drop_dims,
    aten.squeeze.dim: dims.drop_dims,
    aten.squeeze.dims: dims.drop_dims,
    aten.select_scatter.default: dims.select_scatter,
    aten.slice.Tensor: dims.slice_rows,
    aten.slice_scatter.default: dims.scatter_rows,
    aten.gather.default: dims.along(1, [0, 2]),
    aten.scatter_add.default: dims.along(1, [0, 2, 3]),
    aten.scatter.src: dims.along(1, [0, 2, 3]),
    aten.scatter.value: dims.along(1, [0, 2]),
    aten.cumsum.default: dims.along(1, [0]),
    aten._log_softmax.default: dims.along(1, [0]),
    aten._softmax.default: dims.along(1, [0]),
    aten._log_softmax_backward_data.default: dims.along(2, [0, 1]),
    aten._softmax_backward_data.default: dims.along(2, [0, 1]),
    aten.mm.default: dims.mm,
    aten.addmm.default: dims.addmm,
    **dict.fromkeys(REDUCTIONS, dims.reduction),
}
