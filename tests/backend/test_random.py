from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.backend.models import Dropped, batch
from tests.backend.updates import planned, same, span

pytestmark = pytest.mark.compat


def test_dropout_is_drawn_again_bit_for_bit(tmp_path: Path) -> None:
    """Masks are made again from the seeds that are kept, and so are the values behind them."""
    torch.manual_seed(0)
    model, x = Dropped(), batch(1024, 64)  # masks of 64 KiB: smaller ones would be stored
    roomy = planned(tmp_path, model, x, memory_cap="1GiB", seed=5)
    base, peak = span(roomy)
    tight = planned(tmp_path, model, x, memory_cap=base + int(0.75 * (peak - base)), seed=5)
    placement = tight.plan.solution.placement
    masks = [n for n in (u.name for u in tight.plan.problem.units) if "random" in n or ":gt" in n]
    assert all(placement.get(name, "recompute") == "recompute" for name in masks)
    seeds = [name for name in placement if "seed" in name]
    assert seeds
    assert {placement[name] for name in seeds} == {"store"}
    again = [name for name in placement if placement[name] == "recompute"]
    assert any(tight.plan.sources[name].op in ("addmm", "mm", "mul") for name in again)
    assert torch.equal(tight.loss, roomy.loss)
    assert same(tight.gradients, roomy.gradients)
    other = tight.update.step(seed=6)[1]
    assert not same(other, roomy.gradients)
