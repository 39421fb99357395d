from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import hilore_planner.grpo as grpo


def test_every_name_is_what_it_says() -> None:
    for name in grpo.__all__:
        assert not isinstance(getattr(grpo, name), ModuleType), name
    assert dir(grpo) == sorted(grpo.__all__)
    with pytest.raises(AttributeError, match="no attribute 'losses'"):
        grpo.__getattr__("losses")


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, hilore_planner.grpo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
