"""Roofline times derived by hand: 1 GB/s, 1 Gflop/s and a launch of 10 ns make a byte and a flop 1 ns each."""

from __future__ import annotations

import operator

import pytest
import torch

from hilore_planner.errors import OptionError
from hilore_planner.passes.codecs import Rounding, codec_named
from hilore_planner.passes.cost import Roofline
from hilore_planner.passes.devices import PROFILES, DeviceProfile, profile_named, profile_of
from hilore_planner.passes.problem import build_problem
from hilore_planner.passes.schedule import build_schedule
from hilore_planner.passes.units import RecoveryGraph, build_units
from hilore_planner.solvers.ladder import rungs
from hilore_planner.solvers.problem import Unit
from tests.passes.programs import HandMade

aten = torch.ops.aten
ROUND = Roofline(DeviceProfile("round", 1e9, 2e9, 1e9, 10, 2**30, 1))
U = 64 * 64 * 4
FLOPS = 2 * 64**3


def _graph() -> RecoveryGraph:
    """a = x w, b = relu(a), out = b w; backward: mm(t, b), then a fused step that reads a."""
    hand = HandMade()
    x, w = hand.input("primals_1", 64, 64), hand.input("primals_2", 64, 64)
    tangent = hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, w)
    b = hand.call(aten.relu.default, a)
    out = hand.call(aten.mm.default, b, w)
    back = {"tag": "is_backward"}
    first = hand.call(aten.mm.default, tangent, b, **back)
    second = hand.call(aten.mul.Tensor, tangent, hand.call(aten.exp.default, a, **back), **back)
    joint = hand.joint([out], [first, second])
    return build_units(joint, build_schedule(joint), small_bytes=0)


def _problem_units(gradient_error: float = 0.5) -> dict[str, Unit]:
    problem = build_problem(
        _graph(),
        ROUND,
        codecs=("int8", "fp8_e4m3"),
        base_bytes=5,
        memory_cap_bytes=2**30,
        gradient_error=gradient_error,
    )
    return {unit.name: unit for unit in problem.units}


def test_a_product_takes_the_larger_of_arithmetic_and_traffic() -> None:
    graph = _graph()
    maker = graph.units["mm"].maker
    assert ROUND.node_ns(maker) == FLOPS + 10  # 524,288 flops against 3 U = 49,152 bytes
    fast = Roofline(DeviceProfile("fast", 1e9, 1e15, 1e15, 10, 2**30, 1))
    assert fast.node_ns(maker) == 3 * U + 10


def test_half_precision_has_a_rate_of_its_own() -> None:
    profile = ROUND.profile
    assert (
        profile.flops_per_second(torch.bfloat16) == profile.flops_per_second(torch.float16) == 2e9
    )
    assert profile.flops_per_second(torch.float32) == 1e9


def test_times_of_units() -> None:
    units = _problem_units()
    mm, relu = units["mm"], units["relu"]
    assert mm.recompute_ns == FLOPS + 10
    # relu is written out for the product that reads it, by the kernel that reads its parent anyway: one write more.
    assert relu.rebuilt_bytes == U
    assert relu.recompute_ns == U
    # Forward writes both in any case: a product its result, and a product's operand.
    assert (mm.keep_ns, relu.keep_ns) == (0, 0)


def test_storing_what_fusion_would_keep_in_registers_costs_a_write() -> None:
    """A fusible value without any reader in another step of the forward."""
    hand = HandMade()
    x, tangent = hand.input("primals_1", 64, 64), hand.input("tangents_1", 64, 64)
    a = hand.call(aten.mm.default, x, x)
    b = hand.call(torch.ops.prims.convert_element_type.default, a, torch.bfloat16)
    out = hand.call(aten.add.Tensor, b, a)
    grad = hand.call(aten.mul.Tensor, tangent, b, tag="is_backward")
    joint = hand.joint([out], [grad])
    graph = build_units(joint, build_schedule(joint), small_bytes=0)
    unit = graph.units["convert_element_type"]
    assert ROUND.keep_ns(graph, unit) == U // 2
    # It stays in registers again when it is rebuilt: its reader reads a (U) in place of b (U / 2).
    assert unit.rebuilt_bytes == 0
    assert ROUND.recompute_ns(graph, unit) == U - U // 2
    assert ROUND.decode_ns(graph, unit, codec_named("int8"), 77) == round(0.1 * U / 2)


def test_times_and_bytes_of_smaller_copies() -> None:
    units = _problem_units()
    # 4096 values in groups of 64 (a row): 4096 codes and 64 fp32 scales.
    kept = 4096 + 64 * 4
    roundings: dict[str, tuple[int, Rounding]] = {
        "mm": (round(0.1 * U), "nearest"),  # what makes relu's mask again reads less
        "relu": (
            kept + U + 10,
            "stochastic",
        ),  # backward multiplies it and does nothing else with it
    }
    for name, (decode_ns, rounding) in roundings.items():
        forms = {form.codec: form for form in units[name].codecs}
        assert set(forms) == {"int8", "fp8_e4m3"}
        int8 = forms["int8"]
        assert int8.kept_bytes == kept
        assert (
            int8.encode_ns == kept
        )  # by the kernel of relu, which reads the one and makes the other
        assert int8.decode_ns == decode_ns
        assert int8.risk == codec_named("int8", rounding).relative_error ** 2
    assert units["mm"].inexact_risk == max(form.risk for form in units["mm"].codecs)


def test_recomputation_is_charged_for_the_coarsest_codec_of_a_rung() -> None:
    """int6 and fp8_e4m3 are about as coarse, and share one."""
    graph = _graph()
    codecs = ["int4", "fp8_e4m3", "int6", "int8"]
    problem = build_problem(
        graph, ROUND, codecs=codecs, base_bytes=0, memory_cap_bytes=1, gradient_error=0.5
    )
    assert problem.ladder == ("int8", "int6", "fp8_e4m3", "int4")
    unit = next(unit for unit in problem.units if unit.name == "mm")
    risks = {form.codec: form.risk for form in unit.codecs}
    shared = max(risks["int6"], risks["fp8_e4m3"])
    assert unit.finer_inexact_risks == (risks["int8"], shared, shared)
    assert unit.inexact_risk == risks["int4"]
    assert len(rungs(problem)) == 3


def test_codecs_that_no_unit_can_afford_are_not_on_the_ladder() -> None:
    problem = build_problem(
        _graph(),
        ROUND,
        codecs=["int8", "int4"],
        base_bytes=0,
        memory_cap_bytes=1,
        gradient_error=0.05,
    )
    assert problem.ladder == ("int8",)
    assert all(unit.finer_inexact_risks == () for unit in problem.units)


def test_the_program_takes_the_sum_of_its_steps() -> None:
    graph = _graph()
    # Steps: mm | relu (reads a, writes b) | mm | mm | exp, mul (reads t and a, writes the gradient).
    expected = 3 * (FLOPS + 10) + (2 * U + 10) + (3 * U + 10)
    assert ROUND.program_ns(graph) == expected


def test_a_problem_takes_over_what_units_and_schedule_say() -> None:
    graph = _graph()
    problem = build_problem(
        graph, ROUND, codecs=(), base_bytes=5, memory_cap_bytes=77, gradient_error=0.25
    )
    assert (problem.memory_cap_bytes, problem.gradient_error) == (77, 0.25)
    assert problem.first_backward == graph.schedule.first_backward
    assert len(problem.positions) == len(graph.schedule.steps)
    assert problem.positions[0].fixed_bytes == 5 + U
    for unit in problem.units:
        source = graph.units[unit.name]
        assert unit.parents == graph.parents(unit.name)
        assert (unit.made_at, unit.released_at, unit.read_at) == (
            source.made_at,
            source.released_at,
            source.read_at,
        )


def test_attention_statistics_small_and_forced_units_are_never_compressed() -> None:
    hand = HandMade()
    q = hand.input("primals_1", 2, 4, 64, 32)
    tangent = hand.input("tangents_1", 2, 4, 64, 32)
    twice = hand.call(aten.mul.Tensor, q, 2)
    attention = hand.call(
        aten._scaled_dot_product_flash_attention_for_cpu.default, twice, twice, twice, 0.0, True
    )
    out, lse = hand.call(operator.getitem, attention, 0), hand.call(operator.getitem, attention, 1)
    loss = hand.call(aten.mul.Tensor, out, 2)
    grads = hand.call(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        tangent, twice, twice, twice, out, lse, 0.0, True, tag="is_backward",
    )  # fmt: skip
    joint = hand.joint([loss], [hand.call(operator.getitem, grads, 0, tag="is_backward")])
    graph = build_units(joint, build_schedule(joint), small_bytes=0)
    problem = build_problem(
        graph, ROUND, codecs=("int8",), base_bytes=0, memory_cap_bytes=1, gradient_error=0.1
    )
    codecs = {u.name.rsplit("_", 1)[-1]: [f.codec for f in u.codecs] for u in problem.units}
    assert codecs == {"mul": ["int8"], "cpu": [], "cpu[0]": ["int8"], "cpu[1]": []}


def test_profiles_are_found_by_name_and_by_device() -> None:
    assert profile_named("H200") is PROFILES["h200"]
    assert profile_of(torch.device("cpu")) is PROFILES["cpu"]
    with pytest.raises(OptionError, match=r"'mi300'.*a100-40g"):
        profile_named("mi300")
