"""A plan outlives its process: the next one gets plan and code from the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys, torch
from torch._dynamo.utils import counters
from hilore_planner.backend import hilore
from tests.backend.models import Narrow, batch
import hilore_planner.planning as planning
solved = []
solve = planning.solve
planning.solve = lambda *a, **k: (solved.append(1), solve(*a, **k))[1]
for cap in sys.argv[1:]:
    torch._dynamo.reset()
    solved.clear()
    counters.clear()
    torch.manual_seed(0)
    model = Narrow()
    update = torch.compile(model, backend=hilore, dynamic=False, options={"memory_cap": int(cap)})
    update(batch(256, 64)).backward()
    print(json.dumps({
        "solved": len(solved),
        "hits": counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
        "gradient": [p.grad.double().sum().item() for p in model.parameters()],
    }))
"""


def _run(folder: Path, *caps_bytes: int) -> list[dict[str, Any]]:
    """What a process finds under one cap after another."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, caps_bytes)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    said = [line for line in result.stderr.splitlines() if line.startswith("hilore:")]
    return [one | {"said": line.split(" in ")[0]} for one, line in zip(found, said, strict=True)]


@pytest.mark.compat
def test_a_second_process_gets_plan_and_code_from_the_cache(tmp_path: Path) -> None:
    (first,) = _run(tmp_path, 2**30)
    again, other = _run(tmp_path, 2**30, 2**29)
    assert first["solved"] > 0
    assert (again["solved"], again["hits"] > 0) == (0, True)
    assert again["gradient"] == first["gradient"]
    assert again["said"] == first["said"]
    assert other["solved"] > 0
    assert other["gradient"] == pytest.approx(first["gradient"], rel=1e-4)
