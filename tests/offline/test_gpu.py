"""Whether a plan made without the device is of the graph that the device gets."""

from __future__ import annotations

import pytest
import torch

import hilore_planner as hilore
from hilore_planner.passes.devices import profile_of
from hilore_planner.plan import PlacementPlan
from tests.offline.updates import actor, plan_of_backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def _structure(plan: PlacementPlan) -> list[tuple[object, ...]]:
    return [
        (unit.name, unit.kept_bytes, unit.parents, unit.made_at, unit.released_at, unit.read_at)
        for unit in plan.problem.units
    ]


def test_the_graph_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # 129 tokens: the model sees 128 of each sequence, so that no product's operand is padded.
    real = actor(fake=False, device="cuda", dtype=torch.bfloat16, response=97)
    expected = plan_of_backend(real, monkeypatch)
    update = actor(fake=True, dtype=torch.bfloat16, response=97)
    name = profile_of(torch.device("cuda")).name
    found = hilore.plan(update.loss, *update.inputs, device=name, optimizer="none")
    assert {s.op for s in found.sources.values()} == {s.op for s in expected.sources.values()}
    assert _structure(found) == _structure(expected)
    assert found.provenance.fingerprint == expected.provenance.fingerprint
    # Without a device nothing is compiled: what an estimate leaves free for the compiled code is not there.
    outside = {"others", "margin"}
    held = [p for p in found.fixed_parts if p.what not in outside]
    assert held == [p for p in expected.fixed_parts if p.what not in outside]
