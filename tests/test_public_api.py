from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

import hilore_planner


def test_the_public_names() -> None:
    assert set(hilore_planner.__all__) == {
        *("HiloreError", "PlacementPlan", "PolicyUpdate", "RiskProfile"),
        *("calibrate", "exposure", "plan", "profile", "verify"),
    }
    assert dir(hilore_planner) == sorted(hilore_planner.__all__)
    for name in hilore_planner.__all__:
        assert getattr(hilore_planner, name).__name__ == name


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="'hilore_planner' has no attribute 'plam'"):
        hilore_planner.plam  # noqa: B018


def test_importing_loads_nothing_large() -> None:
    script = "import hilore_planner, sys; print(*{m.split('.')[0] for m in sys.modules})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "hilore_planner" in loaded
    assert not loaded & {"torch", "ortools", "numpy", "networkx", "rich", "typer"}


def test_the_backend_and_the_command_are_registered() -> None:
    (backend,) = entry_points(group="torch_dynamo_backends", name="hilore")
    assert backend.value == "hilore_planner.backend:hilore"
    (command,) = entry_points(group="console_scripts", name="hilore")
    assert command.load() is hilore_planner.cli.main  # type: ignore[attr-defined]
    assert version("hilore-planner")
