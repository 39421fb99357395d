"""What is done to a graph in place of a GPU's Inductor."""

from __future__ import annotations

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hilore_planner.offline.gpu_form import as_on_gpu, single_products
from hilore_planner.passes import compat
from hilore_planner.passes.schedule import is_joined


def test_one_pair_of_matrices_is_a_plain_product() -> None:
    def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x[:1], y[:1]) + torch.bmm(x, y).sum(0)

    x, y = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
    gm = make_fx(products, tracing_mode="fake")(x, y)
    mode = next(n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder").fake_mode
    assert isinstance(mode, FakeTensorMode)
    with mode:
        single_products(gm)
    gm.recompile()
    assert [
        n.name for n in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
    ] == ["bmm_1"]
    product = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)[0]
    assert product.meta["val"].shape == (4, 6)
    assert next(iter(product.users)).meta["val"].shape == (1, 4, 6)
    torch.testing.assert_close(gm(x, y), products(x, y))


def test_what_is_joined_on_a_gpu_is_fused() -> None:
    x = torch.randn(2, 3)
    gm = make_fx(lambda x: torch.cat([x, x * 2]), tracing_mode="fake")(x)
    (cat,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert is_joined(cat)
    as_on_gpu(gm)
    assert not is_joined(cat)
    copy = compat.uncompiled(gm, gm.graph)
    assert not is_joined(next(n for n in copy.graph.nodes if n.name == cat.name))
