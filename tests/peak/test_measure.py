"""The measurements themselves, on programs counted by hand."""

from __future__ import annotations

import pytest
import torch

from hilore_planner.errors import HiloreError
from hilore_planner.peak import Owner, external_memory, measured_peak_bytes
from hilore_planner.peak.check import difference
from hilore_planner.peak.measure import cpu_moments
from hilore_planner.peak.snapshot import alive_at_peak
from hilore_planner.peak.timeline import TensorSpec


def test_the_cpu_peak_is_the_highest_running_sum() -> None:
    before = torch.empty(1000)

    def run() -> torch.Tensor:
        first = torch.empty(250)
        second = torch.empty(500)
        del first
        third = torch.empty(125)
        del second
        return third

    assert cpu_moments(run) == [1000, 3000, 2000, 2500, 500]
    assert measured_peak_bytes(run, "cpu").added_bytes == 3000
    assert before.numel() == 1000


def test_what_was_there_before_is_not_counted_when_it_goes() -> None:
    before = [torch.empty(1000)]

    def run() -> torch.Tensor:
        before.clear()
        return torch.empty(10)

    assert measured_peak_bytes(run, "cpu").peak_bytes == 40


def test_a_call_that_allocates_nothing_has_no_peak() -> None:
    assert measured_peak_bytes(lambda: None, "cpu").peak_bytes == 0


def test_other_devices_are_refused() -> None:
    with pytest.raises(HiloreError, match="'meta'; accepted: cpu, cuda"):
        measured_peak_bytes(lambda: None, "meta")
    with pytest.raises(HiloreError, match="only a CUDA device"):
        external_memory("cpu")


def test_the_trace_of_a_device_is_replayed_to_its_peak() -> None:
    def event(action: str, addr: int, size: int) -> dict[str, object]:
        return {"action": action, "addr": addr, "size": size}

    trace = [
        event("free_requested", 9, 100),  # from before the trace
        event("alloc", 1, 10),
        event("alloc", 2, 20),
        event("free_requested", 1, 10),
        event("free_completed", 1, 10),
        event("alloc", 1, 30),
        event("segment_alloc", 7, 1000),
        event("free_requested", 2, 20),
        event("alloc", 2, 15),
    ]
    assert [(entry["addr"], entry["size"]) for entry in alive_at_peak(trace)] == [(2, 20), (1, 30)]
    assert alive_at_peak([]) == []


def test_only_what_differs_is_listed() -> None:
    same, mine, theirs = Owner("a", 1, 8, 512), Owner("b", 2, 16, 512), Owner("b", 2, 24, 24)
    assert difference([same, mine, mine], [same, theirs]) == [("b", 32, 0), ("b", 0, 24)]


def test_a_spec_knows_how_far_it_reaches() -> None:
    base = torch.empty(100, dtype=torch.bfloat16)
    spec = TensorSpec.of(base.as_strided((3, 4), (10, 2), 5))
    assert (spec.shape, spec.stride, spec.storage_offset) == ((3, 4), (10, 2), 5)
    assert spec.storage_bytes == 200
    assert spec.reach_bytes == (5 + 20 + 6 + 1) * 2
    assert TensorSpec.of(torch.empty(0, 3)).reach_bytes == 0
