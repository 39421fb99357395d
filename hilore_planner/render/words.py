"""The words and short forms that every view uses."""

from __future__ import annotations

import re

from hilore_planner.solvers.problem import PlacementProblem

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "bool": "b8",
}
"""Torch's own abbreviations, as in its graph dumps."""

_STYLES = {"store": "green", "compress": "yellow", "recompute": "cyan"}


def value(dtype: str, shape: tuple[int, ...]) -> str:
    """A tensor's type as in torch's graph dumps: ``bf16[4, 2560, 1536]``; several are ``-``."""
    if not dtype:
        return "-"
    name = dtype.removeprefix("torch.")
    return f"{_DTYPES.get(name, name)}[{', '.join(map(str, shape))}]"


def action(action: str) -> str:
    """An action for people: ``compress:int8`` is ``compress int8``."""
    return action.replace(":", " ")


def op(name: str) -> str:
    """An op for people: ``_scaled_dot_product_flash_attention[0]`` is ``sdpa_flash[0]``."""
    attention = re.fullmatch(r"_scaled_dot_product_(\w+?)_attention(?:_for_cpu)?(.*)", name)
    return f"sdpa_{attention[1]}{attention[2]}" if attention else name


def style(action: str) -> str:
    """The colour of an action."""
    return _STYLES.get(action.partition(":")[0], "dim")


def share(part: int, whole: int) -> str:
    """A part in percent, with one decimal."""
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def position(problem: PlacementProblem, index: int) -> str:
    """A position for people: ``position 412 of 903, backward: mul (model.py:42)``."""
    phase = "forward" if index < problem.first_backward else "backward"
    label = problem.positions[index].label
    return f"position {index} of {len(problem.positions)}, {phase}" + (label and f": {label}")


def count(number: int, noun: str) -> str:
    """``1 unit``, ``2 units``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
