"""The normaliser of a softmax: the row's maximum itself is subtracted, and infinite ones come out the same."""

from __future__ import annotations

import math

import pytest
import torch

from tests.head.heads import capture

aten = torch.ops.aten
INF = math.inf


@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_is_the_same_where_it_is_infinite(keepdim: bool) -> None:
    logits = torch.tensor(
        [[0.5, -1, 2], [-INF, 3, 1], [-INF, -INF, -INF], [1, INF, 0], [INF, INF, -INF]],
        dtype=torch.float64,
        requires_grad=True,
    )

    def update() -> torch.Tensor:
        return torch.logsumexp(logits * 1.5, -1, keepdim)

    whole = capture(update)
    (gap,) = (node for node in whole.gm.graph.nodes if _is_exponential_of_gap(node))
    assert gap.args[1].target is aten.amax.default
    found, gradient, *_ = whole.outputs()
    torch.testing.assert_close(found, update().detach(), rtol=1e-12, atol=0)
    (expected,) = torch.autograd.grad(update().sum(), logits)
    torch.testing.assert_close(gradient, expected, equal_nan=True)


def _is_exponential_of_gap(node: torch.fx.Node) -> bool:
    """A difference whose exponential is summed."""
    sums = [after for user in node.users for after in user.users if user.target is aten.exp.default]
    return node.target is aten.sub.Tensor and any(
        after.target is aten.sum.dim_IntList for after in sums
    )
