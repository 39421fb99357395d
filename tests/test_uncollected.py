"""Work without looks for garbage: they are on again afterwards, if they were before."""

from __future__ import annotations

import gc

import pytest

from hilore_planner.uncollected import uncollected


def test_collection_is_off_inside_and_then_as_it_was() -> None:
    assert gc.isenabled()
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_does_not_leave_it_off() -> None:
    with pytest.raises(ZeroDivisionError), uncollected():
        _ = 1 // 0
    assert gc.isenabled()
