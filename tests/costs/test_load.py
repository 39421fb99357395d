"""What surrounds calls that are timed, and the timing of them; a GPU is played by a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from hilore_planner.costs import load as loads
from hilore_planner.costs.layout import Layout
from hilore_planner.costs.load import Arena, Copies, Load, Pauses, input_bytes
from hilore_planner.costs.sample import Run, Sample
from hilore_planner.costs.stopwatch import Stopwatch, _times
from tests.costs.ready import Ready

CPU = torch.device("cpu")
COPY_NS, STEP_NS, WRITE_NS = 125_000, 300_000, 9_000
CACHE_BYTES = 96


class Clock:
    """A device: work takes time on it that the host does not wait for."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.done: list[str] = []

    def work(self, what: str, ns: int) -> None:
        self.now_ns += ns
        self.done.append(what)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """In the place of CUDA; every copy takes its time on it."""
    clock = Clock()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ns = -1

        def record(self) -> None:
            self.at_ns = clock.now_ns

        def elapsed_time(self, end: Event) -> float:
            return (end.at_ns - self.at_ns) / 1e6

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: clock.work("pause", cycles))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**20, 2**20))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: SimpleNamespace(L2_cache_size=CACHE_BYTES),
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(loads, "_COPIED_BYTES", 64)
    monkeypatch.setattr(Copies, "whole", lambda _: clock.work("copy", COPY_NS))
    monkeypatch.setattr("hilore_planner.costs.stopwatch._WARM_SECONDS", 0.0)
    return clock


def layout(*shape: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout(shape, tuple(torch.empty(shape, device="meta").stride()), dtype, limit=4)


def sample(name: str, *layouts: Layout, eager: Callable[[], object] | None = None) -> Sample:
    def make(_: object) -> Run:
        raise AssertionError("made by the test")

    bound = None if eager is None else lambda _: eager
    return Sample(name, name, lambda: layouts, make, eager=bound)


def test_inputs_of_one_call_do_not_overlap_and_share_memory_with_others() -> None:
    ids = layout(8, dtype=torch.int64)
    one, other = (layout(30, 10), layout(20, 30), ids), (layout(100, 100),)
    arena = Arena(CPU, [one, other])
    a, b, drawn = arena.inputs(one)
    (c,) = arena.inputs(other)
    assert (a.shape, b.shape, c.shape) == ((30, 10), (20, 30), (100, 100))
    assert a.data_ptr() == c.data_ptr()
    assert b.data_ptr() >= a.data_ptr() + 4 * 300
    assert 0.8 < float(torch.cat([a.flatten(), b.flatten()]).std()) < 1.2
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < 4
    assert arena.holds(one)
    assert not arena.holds((layout(200, 100),))
    assert not arena.holds((layout(2, dtype=torch.bfloat16),))
    assert input_bytes(other) == 4 * 10_240  # a multiple of 256 elements


def test_a_load_runs_a_program_in_a_circle(clock: Clock) -> None:
    def broken() -> None:
        raise RuntimeError("no such kernel")

    one = sample("one", layout(4), eager=lambda: clock.work("one", STEP_NS))
    parts: list[Sample | int] = [
        one,
        2 * 64,
        sample("broken", layout(4), eager=broken),
        sample("large", layout(2**16), eager=lambda: clock.work("large", 1)),
        sample("two", layout(4), eager=lambda: clock.work("two", STEP_NS)),
        one,
    ]
    copies = Copies(CPU)
    pauses = Pauses.measured(copies)
    assert clock.done[-1] == "pause"
    load = Load.of_program(parts, Arena(CPU, [(layout(4),)]), copies, pauses)
    clock.done.clear()
    load.warm_up(0.0)
    load.run(1.0)
    assert clock.done[-6:] == ["one", "copy", "pause", "two", "one", "one"]
    assert {"broken", "large"}.isdisjoint(clock.done)
    Load.of_program([], Arena(CPU, []), copies, pauses).run(1.0)
    assert clock.done[-1] == "copy"


def test_a_pause_lasts_as_long_as_fused_work_is_slower_than_a_copy(clock: Clock) -> None:
    pauses = Pauses.measured(Copies(CPU))
    start_ns = clock.now_ns
    pauses.after(3 * 128)()  # as much as three copies move
    assert clock.now_ns - start_ns == pytest.approx(0.8 * 3 * COPY_NS, abs=1)


def test_calls_are_timed_amid_the_load_without_what_surrounds_them(clock: Clock) -> None:
    times = {"long": 5_300_000, "short": 2_000, "tiny": 0}

    def call(name: str) -> tuple[Sample, Run]:
        return sample(name, layout(32)), Ready(lambda _: clock.work(name, times[name]))

    def fails(_: list[torch.Tensor]) -> None:
        raise RuntimeError("no kernel\nof this kind")

    calls = [
        call("long"),
        (sample("broken", layout(4)), Ready(fails)),
        call("short"),
        (sample("large", layout(2**20)), Ready()),
        call("tiny"),
    ]
    step = sample("step", layout(4), eager=lambda: clock.work("step", STEP_NS))
    program: list[Sample | int] = [step, 128]
    entries = _times(CPU, calls, program)
    assert [entry.ns for entry in entries] == [5_300_000, None, 2_000, None, 1]
    assert [entry.what for entry in entries] == ["long", "broken", "short", "large", "tiny"]
    assert "no kernel" in entries[1].why
    assert entries[3].is_passing
    # Every timed call stands behind a copy, and every copy of those behind work of the update.
    last = len(clock.done) - 1 - clock.done[::-1].index("long")
    assert clock.done[last - 1] == "copy"
    assert clock.done[last - 2] in ("step", "copy", "pause")


def test_an_input_that_the_cache_holds_is_written_before_the_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(tensor: torch.Tensor, _: int) -> torch.Tensor:
        clock.work(f"write {tensor.nbytes}", WRITE_NS)
        return tensor

    monkeypatch.setattr(torch.Tensor, "mul_", write)
    call = Ready(lambda _: clock.work("call", 5_000))
    step = sample("step", layout(4), eager=lambda: clock.work("step", STEP_NS))
    (entry,) = _times(CPU, [(sample("one", layout(4), layout(16)), call)], [step])
    assert entry.ns == 5_000
    last = len(clock.done) - 1 - clock.done[::-1].index("call")
    assert clock.done[last - 2 : last] == ["copy", "write 64"]


def test_rounds_that_were_disturbed_are_repeated(clock: Clock) -> None:
    calls = 0

    def call(_: list[torch.Tensor]) -> None:
        nonlocal calls
        calls += 1
        clock.work("call", 50_000)

    # Those that tell how long a copy takes; then, of the first seven rounds: by itself, and before the call.
    before = [COPY_NS] * (1 + loads._TIMED_COPIES)
    disturbed = iter(before + ([COPY_NS, COPY_NS, 9 * COPY_NS, 9 * COPY_NS] * 4)[:14])

    def copy(_: Copies) -> None:
        clock.work("copy", next(disturbed, COPY_NS))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Copies, "whole", copy)
        step = sample("step", layout(4), eager=lambda: clock.work("step", STEP_NS))
        (entry,) = _times(CPU, [(sample("one", layout(32)), Ready(call))], [step])
    assert entry.ns == 50_000
    assert calls == 2 + 2 * 7


def test_what_fails_around_the_calls_is_the_reason_of_all_and_passes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    @contextmanager
    def on(_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(Copies, "__init__", full)
    monkeypatch.setattr(torch.cuda, "device", on)
    watch = Stopwatch(torch.device("cuda"))
    entries = watch.times([(sample(name, layout(4)), Ready()) for name in ("one", "two")], [])
    assert [entry.what for entry in entries] == ["one", "two"]
    assert all(entry.ns is None and entry.is_passing for entry in entries)
    assert "out of memory" in entries[0].why
