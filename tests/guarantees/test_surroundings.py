"""Case: something else holds part of the device; the cap comes from what is free, and `reserved` is left alone."""

from __future__ import annotations

import logging

import pytest
import torch

from hilore_planner import region
from hilore_planner.errors import OptionError
from hilore_planner.options import Options
from hilore_planner.peak import external_memory
from hilore_planner.peak.model import PolicyLoss, Shape
from hilore_planner.region import surroundings
from tests.guarantees.regions import capture

MIB, GIB = 2**20, 2**30
TOTAL, FREE, RESERVED, ALLOCATED = 80 * GIB, 30 * GIB, 12 * GIB, 10 * GIB
"""Of a device of 80 GiB, 38 are held by another process: 80 - 30 free - 12 in this one's allocator."""


@pytest.fixture
def shared_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A CUDA device as far as memory figures go."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (FREE, TOTAL))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: RESERVED)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: ALLOCATED)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(region, "_make_library_workspaces", lambda _: None)
    return torch.device("cuda", 0)


def _around(device: torch.device) -> region.Surroundings:
    """Surroundings of a region whose only input is on the device, with no device there."""
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        weight = torch.nn.Parameter(torch.empty(GIB // 4, device=device))
    return surroundings([weight])


@pytest.mark.parametrize(("place", "block_bytes"), [("cpu", 43 * MIB), ("cuda:0", 44 * MIB)])
def test_optimizer_state_to_come_is_what_its_allocator_counts(place: str, block_bytes: int) -> None:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        weight = torch.nn.Parameter(torch.empty(43 * MIB // 2, dtype=torch.bfloat16, device=place))
        frozen = torch.nn.Parameter(torch.empty(MIB, device=place), requires_grad=False)
        optimizer = torch.optim.AdamW([weight, frozen])
    assert region.pending_optimizer_bytes(weight.device) == 2 * block_bytes
    optimizer.state[weight] = {"step": torch.ones(())}
    assert region.pending_optimizer_bytes(weight.device) == 0


@pytest.mark.compat
def test_what_others_hold_is_told_apart(
    shared_device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    found = external_memory(shared_device)
    assert (found.allocated_bytes, found.cached_bytes) == (10 * GIB, 2 * GIB)
    assert (found.others_bytes, found.free_bytes) == (38 * GIB, 30 * GIB)
    with caplog.at_level(logging.INFO, logger="hilore_planner.region"):
        around = _around(shared_device)
    assert (around.total_bytes, around.usable_bytes) == (80 * GIB, 42 * GIB)
    assert around.base_bytes == 10 * GIB
    parts = dict(around.base_parts)
    assert (parts["weights"], parts["others"]) == (GIB, 9 * GIB)
    assert "10.00 GiB allocated by this process, 2.00 GiB cached by its allocator" in caplog.text
    assert "38.00 GiB held by others, 30.00 GiB free" in caplog.text


def test_the_cap_comes_from_what_is_free_and_leaves_what_is_reserved(
    shared_device: torch.device,
) -> None:
    around = _around(shared_device)
    given = (around.total_bytes, around.usable_bytes)
    free = Options().resolve(*given, auto_reserved_bytes=0)
    assert 40 * GIB <= free < 42 * GIB
    engine = Options.parse({"reserved": "5GiB"}).resolve(*given, auto_reserved_bytes=0)
    assert engine == free - 5 * GIB
    with pytest.raises(OptionError, match=r"50.00 GiB of it are reserved"):
        Options.parse({"reserved": "50GiB"}).resolve(*given)


@pytest.mark.usefixtures("no_kernels")
def test_what_is_reserved_is_not_used() -> None:
    shape = Shape(1, 96, 264, 4, 2, 512, 2, 128)
    torch.manual_seed(0)
    toy = capture(PolicyLoss(shape), torch.randint(512, (2, 128)), torch.rand(2, 128))
    plenty = toy.planned("1GiB")
    reserved = 100_000
    planned = toy.planned(plenty.peak_bytes + reserved, reserved=reserved + plenty.peak_bytes // 20)
    assert planned.cap_bytes == plenty.peak_bytes - plenty.peak_bytes // 20
    assert planned.peak_bytes <= planned.cap_bytes


@pytest.mark.gpu
def test_on_a_device_others_are_seen() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    mine = torch.empty(64 * 2**20, dtype=torch.uint8, device=device)
    found = external_memory(device)
    assert found.allocated_bytes >= mine.nbytes
    # At least the CUDA context is nobody's tensor.
    assert found.others_bytes > 0
    whole = found.allocated_bytes + found.cached_bytes + found.others_bytes + found.free_bytes
    assert whole == found.total_bytes


def test_what_is_measured_with_other_threads_is_kept_apart() -> None:
    threads = torch.get_num_threads()
    try:
        names = set()
        for count in (1, 2):
            torch.set_num_threads(count)
            names.add(surroundings([torch.ones(1)]).slug)
    finally:
        torch.set_num_threads(threads)
    assert len(names) == 2
