"""A planned head on a CUDA device: gradients, and the memory it takes."""

from __future__ import annotations

import pytest
import torch

from hilore_planner.bench.head_reference import exact_gradients, head_batch, relative_error
from hilore_planner.bench.head_ways import Level, planned
from hilore_planner.peak.measure import measured_peak_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
MIB = 2**20


@pytest.mark.parametrize(
    ("level", "totals"),
    [("token", "gradient"), ("token", "float32"), ("sequence", "gradient")],
)
def test_a_planned_head(level: Level, totals: str) -> None:
    """Beyond its gradients it holds one chunk of logits, and chunks of the hidden states' gradient twice."""
    device = torch.device("cuda")
    b = head_batch(
        sequences=2,
        tokens=2048,
        hidden=256,
        vocabulary=32_000,
        dtype=torch.bfloat16,
        device=device,
        seed=0,
    )
    run = planned(level, 4, head_totals=totals)

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run(b), [b.hidden, b.weight])

    for mine, theirs in zip(gradients(), exact_gradients(b, level), strict=True):
        assert relative_error(mine, theirs) < 0.02
    gradients()
    own_bytes = measured_peak_bytes(gradients, device).added_bytes
    own_bytes -= b.hidden.nbytes + b.weight.nbytes
    chunk_bytes = 2 * b.tokens * 32_000 // 4
    wide_bytes = 4 * b.weight.numel() if totals == "float32" else 0
    assert own_bytes < chunk_bytes + wide_bytes + 2 * b.hidden.nbytes + 8 * MIB
