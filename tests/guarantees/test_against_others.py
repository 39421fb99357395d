"""With no more bytes saved than gradient checkpointing or torch's memory budget save, the peak is no higher."""

from __future__ import annotations

import pytest

from hilore_planner.bench import rivals as others
from hilore_planner.bench.peak import SAVED_AS
from hilore_planner.bench.peak_cpu import Climber, rival_rows
from hilore_planner.bench.small_models import small_update


@pytest.mark.usefixtures("no_kernels")
def test_at_equal_saved_bytes_no_peak_is_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "BUDGETS", (0.5,))
    rows = {row["variant"]: row for row in rival_rows(Climber(small_update("llama")))}
    for name in ("eager-gc", "gc", "budget 0.5"):
        theirs, ours = rows[name], rows[SAVED_AS.format(name)]
        assert ours["measured_saved_bytes"] <= theirs["measured_saved_bytes"]
        assert ours["measured_peak_bytes"] <= theirs["measured_peak_bytes"]
