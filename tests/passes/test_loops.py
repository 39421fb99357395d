"""A norm's kernel goes over its rows no more often where it also encodes them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hilore_planner.passes import compat
from hilore_planner.passes.codecs.floats import WHOLE_ROW, Fp8E4M3
from hilore_planner.passes.compat_loops import SumTogether, by_loops
from hilore_planner.peak import capture_wrappers

pytestmark = pytest.mark.compat


def _part(name: str, needs: str, size: tuple[int, int]) -> Any:
    return SimpleNamespace(
        get_name=lambda: name,
        ancestors=frozenset(needs.split()),
        group=("cuda", size),
        is_reduction=lambda: size == (8, 4096),
    )


def test_sums_come_before_what_needs_sums_and_figures_of_rows_before_rows() -> None:
    whole, summed, figures = (8 * 4096, 1), (8, 4096), (8, 1)
    parts = [
        _part("add", "", whole),
        _part("mean", "add", summed),
        _part("root", "add mean", figures),
        _part("normed", "add mean root", whole),
        _part("peak", "add", summed),
        _part("codes", "add peak", whole),
        _part("scale", "add peak", figures),
        _part("again", "add mean root normed", summed),
    ]
    found = [part.get_name() for part in by_loops(parts)]
    assert found == ["add", "mean", "peak", "root", "scale", "normed", "codes", "again"]


def test_caches_know_the_order_by_its_name() -> None:
    one, other = SumTogether(), SumTogether()
    assert (repr(one), one.uuid()) == (repr(other), other.uuid())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_norm_that_encodes_goes_twice_over_its_rows() -> None:
    codec = Fp8E4M3(group=WHOLE_ROW)

    def forward(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x @ y
        scale = total.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        return (total * scale).bfloat16() @ w, total, *codec.encode(total)

    given = [torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(3)]
    with capture_wrappers() as wrappers:
        torch._dynamo.reset()
        found = torch.compile(forward, options={**compat.WHOLE_COPIES})(*given)
    code = Path(wrappers[0].path).read_text()
    assert len(re.findall(r"for r0_offset in", code)) == 2
    decoded = codec.decode(found[2:], torch.bfloat16)
    wrong = (decoded - found[1]).float().square().mean() / found[1].float().square().mean()
    assert float(wrong) ** 0.5 == pytest.approx(codec.relative_error, rel=0.05)
