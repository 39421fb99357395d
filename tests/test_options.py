from __future__ import annotations

from pathlib import Path

import pytest

from hilore_planner.codec_names import KNOWN_CODECS
from hilore_planner.errors import OptionError
from hilore_planner.options import Options
from hilore_planner.passes.codecs import codec_named

GIB = 2**30


def test_nothing_given_is_the_defaults() -> None:
    assert Options.parse() == Options.parse({}) == Options()
    assert Options().codecs == ("int8", "fp8_e4m3", "int6", "int4", "bf16", "bits")
    assert Options().gradient_error == 0.0


def test_the_codecs_named_are_those_there_are() -> None:
    assert tuple(codec_named(name).name for name in KNOWN_CODECS) == KNOWN_CODECS


def test_reads_every_option() -> None:
    options = Options.parse(
        {
            "memory_cap": "26GiB",
            "reserved": "1GiB",
            "gradient_error": 0.01,
            "codecs": ["int8", "int8"],
            "plan": "update.json",
            "on_mismatch": "replan",
            "costs": "roofline",
            "checkpoint_tags": "respect",
            "solver_seconds": 3,
            "dump_dir": Path("dump"),
            "inductor": {"max_autotune": True},
        }
    )
    assert options == Options(
        memory_cap=26 * GIB,
        reserved=GIB,
        gradient_error=0.01,
        codecs=("int8",),
        plan=Path("update.json"),
        on_mismatch="replan",
        costs="roofline",
        checkpoint_tags="respect",
        solver_seconds=3.0,
        dump_dir=Path("dump"),
        inductor={"max_autotune": True},
    )


def test_an_unknown_option_names_the_nearest_and_the_accepted() -> None:
    with pytest.raises(OptionError) as error:
        Options.parse({"memory_cop": "26GiB"})
    assert str(error.value) == (
        "unknown option 'memory_cop'; did you mean 'memory_cap'? (accepted: memory_cap, reserved, "
        "gradient_error, codecs, exposure, plan, on_mismatch, costs, checkpoint_tags, head, head_totals, "
        "solver_seconds, dump_dir, inductor)"
    )
    with pytest.raises(OptionError, match=r"unknown option 7 \(accepted"):
        Options.parse({7: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("memory_cap", "lots", r"option memory_cap is 'lots'; accepted: bytes"),
        ("memory_cap", 1.5, r"option memory_cap is 1.5; accepted: bytes"),
        ("reserved", "some", r"which may also be 'auto' or 0\) is 'some'"),
        ("reserved", 0.5, r"is 0.5, a share of a device"),
        ("gradient_error", -0.1, r"is -0.1; accepted: a number in \[0, 1\)"),
        ("gradient_error", "0.1", r"is '0.1'; accepted: a number"),
        ("gradient_error", float("nan"), r"is nan; accepted: a number"),
        (
            "codecs",
            ["int7"],
            r"unknown codec 'int7' \(accepted: int8, fp8_e4m3, int6, int4, bf16, bits, or tiers",
        ),
        ("codecs", "int8", r"is 'int8'; accepted: a list"),
        ("plan", 3, r"is 3; accepted: a path"),
        ("plan", "nowhere/update.json", r"accepted: a file in a folder that exists; there is no n"),
        ("on_mismatch", "ignore", r"is 'ignore'; accepted: 'error' \| 'replan'"),
        (
            "costs",
            "guessed",
            r"is 'guessed'; accepted: 'auto' \| 'measured' \| 'roofline' \| the path",
        ),
        ("checkpoint_tags", None, r"is None; accepted: 'override' \| 'respect' \| 'error'"),
        ("solver_seconds", 0, r"is 0; accepted: a number of seconds"),
        ("solver_seconds", True, r"is True; accepted: a number of seconds"),
        ("inductor", [1], r"is \[1\]; accepted: a dict"),
    ],
)
def test_bad_values_are_refused(name: str, value: object, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Options.parse({name: value})


def test_the_cap_is_resolved_on_the_device() -> None:
    total, free = 100 * GIB, 60 * GIB
    assert Options(memory_cap=26 * GIB).resolve(total, free) == 26 * GIB
    assert Options(memory_cap=0.5).resolve(total, free) == 50 * GIB
    # Free now, less a margin of 2% of the device.
    assert Options().resolve(total, free) == 58 * GIB
    assert Options(reserved=8 * GIB).resolve(total, free) == 50 * GIB
    assert Options().resolve(total, free, auto_reserved_bytes=GIB) == 57 * GIB
    assert Options(reserved=0).resolve(total, free, auto_reserved_bytes=GIB) == 58 * GIB


def test_a_cap_that_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match=r"26.00 GiB, but the device has 16.00 GiB"):
        Options(memory_cap=26 * GIB).resolve(16 * GIB, 16 * GIB)
    with pytest.raises(OptionError, match=r"4.00 GiB of it are reserved, so nothing is left"):
        Options(memory_cap=4 * GIB, reserved=4 * GIB).resolve(16 * GIB, 16 * GIB)
    with pytest.raises(OptionError, match=r"0 B free, less a margin"):
        Options().resolve(16 * GIB, 0)
