"""The check of predicted times: what is launched, what it is matched with, what a record says of it."""

from __future__ import annotations

import torch

from hilore_planner.attribution import Launch, PricedStep, attribute, by_kind
from hilore_planner.bench.cost import ordered_share, summary
from hilore_planner.profiling import launches

PRODUCT = ((64, 32), (32, 16))
OTHER = ((8, 8), (8, 8))


def step(what: str, ns: int, op: str = "", shapes: tuple[tuple[int, ...], ...] = ()) -> PricedStep:
    return PricedStep(op, what, shapes, ns)


STEPS = (
    step("norm", 10),
    step("mm one", 100, "mm", PRODUCT),
    step("silu", 20),
    step("attend", 50, "_scaled_dot_product_flash_attention", ((1, 2, 8, 4),) * 3),
    step("mm two", 40, "addmm", ((8,), *OTHER)),
    step("loss", 5),
)
LAUNCHES = (
    Launch("triton_red_fused_norm_0", (), 12),
    Launch("addmm", ((16,), *PRODUCT), 110),  # Inductor fused an addition into it
    Launch("triton_poi_fused_silu_1", (), 15),
    Launch("triton_poi_fused_copy_2", (), 30),
    Launch("_scaled_dot_product_cudnn_attention", ((1, 2, 8, 4),) * 3, 45),
    Launch("copy_", ((8, 8),), 7),
    Launch("mm", OTHER, 40),
    Launch("triton_per_fused_loss_3", (), 5),
)


def test_launches_are_matched_with_the_steps_they_carry_out() -> None:
    found = {difference.what: difference for difference in attribute(STEPS, LAUNCHES)}
    assert (found["mm one"].predicted_ns, found["mm one"].measured_ns) == (100, 110)
    assert found["mm one"].kernels == ("addmm",)
    assert (found["attend"].kind, found["attend"].more_ns) == ("attention", -5)
    # One fused step became two kernels: a copy that was not foreseen.
    assert (found["silu"].predicted_ns, found["silu"].measured_ns) == (20, 45)
    assert found["silu"].kernels == ("triton_poi_fused_silu_1", "triton_poi_fused_copy_2")
    assert (found["not in the plan"].kind, found["not in the plan"].measured_ns) == ("other", 7)
    assert found["mm two"].more_ns == found["loss"].more_ns == 0


def test_differences_add_up_and_come_largest_first() -> None:
    found = attribute(STEPS * 3, LAUNCHES * 3)
    assert sum(d.predicted_ns for d in found) == 3 * sum(s.ns for s in STEPS)
    assert sum(d.measured_ns for d in found) == 3 * sum(x.ns for x in LAUNCHES)
    assert [abs(d.more_ns) for d in found] == sorted((abs(d.more_ns) for d in found), reverse=True)
    assert next(d for d in found if d.what == "silu").count == 3
    kinds = by_kind(found)
    assert kinds["product"] == (3 * 140, 3 * 150)
    assert kinds["attention"] == (3 * 50, 3 * 45)


def test_a_call_that_was_not_seen_does_not_shift_the_others() -> None:
    calls = [launch for launch in LAUNCHES if not launch.is_generated and launch.name != "copy_"]
    layers = [step for step in STEPS if step.op]
    found = attribute(layers * 4, [*calls * 2, *calls[1:], *calls])
    assert {d.what: d.count for d in found} == {"mm one": 4, "attend": 4, "mm two": 4}
    assert next(d for d in found if d.what == "mm one").measured_ns == 3 * 110


def test_what_was_not_run_and_what_was_not_planned_stay_visible() -> None:
    found = {difference.what: difference for difference in attribute(STEPS[:2], LAUNCHES[4:5])}
    assert found["mm one"].measured_ns == 0
    assert found["norm"].measured_ns == 0
    assert found["not in the plan"].predicted_ns == 0


def test_the_profiler_sees_library_calls_in_order() -> None:
    left, right, bias = torch.randn(64, 32), torch.randn(32, 16), torch.randn(16)

    def run() -> None:
        torch.mm(left, right)
        torch.addmm(bias, left, right)

    run()
    found = [launch for launch in launches(run, torch.device("cpu")) if "mm" in launch.name]
    assert [launch.name for launch in found] == ["mm", "addmm"]
    assert found[0].shapes == PRODUCT
    assert found[1].shapes == ((16,), *PRODUCT)
    assert all(launch.ns > 0 and not launch.is_generated for launch in found)


def row(time_ms: float, predicted_ms: float) -> dict[str, object]:
    return {
        "setting": "toy",
        "variant": "hilore exact",
        "cap_bytes": 2**20,
        "first_call_seconds": 80.0,
        "queued_time_ms": time_ms,
        "predicted_time_ns": round(1e6 * predicted_ms),
        "time_ratio": predicted_ms / time_ms,
        "planning_seconds": 1.0,
        "compile_seconds": 50.0,
        "differences": [
            {
                "what": "silu",
                "kind": "fused",
                "count": 2,
                "predicted_ns": 10**6,
                "measured_ns": 3 * 10**6,
            }
        ],
    }


def test_order_counts_pairs_that_are_apart() -> None:
    rows = [row(100.0, 99.0), row(100.5, 90.0), row(110.0, 104.0), row(120.0, 103.0)]
    # 100 and 100.5 are too near; 110 and 120 are predicted the wrong way round.
    assert ordered_share(rows) == (4, 5)


def test_a_summary_says_ratios_order_planning_and_the_largest_difference() -> None:
    failed = {"setting": "toy", "variant": "hilore exact", "error": "InfeasibleError: ..."}
    plain = {"setting": "toy", "variant": "inductor", "first_call_seconds": 70.0}
    text = "\n".join(summary([plain, row(100.0, 98.0), row(110.0, 111.1), failed]))
    assert "first call 70 s without a plan, 80 s with the first" in text
    assert "2 of 3 plans; predicted/measured time 0.980 to 1.010" in text
    assert "1 of 1 pairs" in text
    assert "planning 2.0% to 2.0%" in text
    assert "+2.00 ms of    1.00 fused x2: silu" in text
    assert summary([failed]) == ["toy: none of 1 plans could be timed"]
