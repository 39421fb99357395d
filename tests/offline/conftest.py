from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own: what an earlier run compiled must not answer for this one."""
    folder = tmp_path_factory.mktemp("inductor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield folder
