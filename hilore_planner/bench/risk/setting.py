"""What the risk benchmark trains, calibrates and measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hilore_planner.errors import OptionError

GROUP = 8
"""Responses to one prompt."""


@dataclass(frozen=True, slots=True)
class RiskSetting:
    """A small language model, its task, and how much is measured.

    Attributes:
        shape: of the model, as transformers names it.
        groups: of eight responses in a microbatch.
        train_steps: updates on the synthetic task before anything is measured.
        calibration_batches: given to ``hilore.calibrate``; each class is made inexact alone on ``perturbed_batches``.
        held_out: microbatches that no calibration saw, on which every plan is measured.
        solved_errors: typical gradient errors that plans are solved for.
        spread_errors: the same for plans that store or compress, and recompute nothing.
        room: of the memory between the smallest feasible cap and everything stored, what plans get.
    """

    name: str
    shape: dict[str, Any]
    vocabulary: int
    groups: int
    prompt: int
    response: int
    train_steps: int
    calibration_batches: int
    perturbed_batches: int
    held_out: int
    solved_errors: tuple[float, ...]
    spread_errors: tuple[float, ...]
    room: float = 0.5
    dtype: str = "float32"
    seed: int = 0

    @property
    def sequences(self) -> int:
        """In one microbatch."""
        return GROUP * self.groups

    @property
    def seeds(self) -> range:
        """Of the microbatches that are calibrated on."""
        return range(1, self.calibration_batches + 1)


def _shape(hidden: int, feed_forward: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        # Torch has no fused attention in 32 bits for grouped queries, and models are trained with fused attention.
        "num_key_value_heads": heads,
        "tie_word_embeddings": True,
    }


RISK_SETTINGS = {
    setting.name: setting
    for setting in (
        RiskSetting(
            *("tiny", _shape(128, 384, 2, 4), 128, 1, 16, 48),
            train_steps=60,
            calibration_batches=4,
            perturbed_batches=2,
            held_out=4,
            solved_errors=(0.015,),
            spread_errors=(0.015,),
        ),
        RiskSetting(
            *("small", _shape(256, 768, 4, 8), 256, 2, 32, 224),
            train_steps=1500,
            calibration_batches=16,
            perturbed_batches=2,
            held_out=52,
            solved_errors=(0.004, 0.008, 0.015, 0.03),
            spread_errors=(0.003, 0.006, 0.012, 0.02, 0.04),
        ),
        RiskSetting(
            *("trained", _shape(512, 2048, 4, 8), 512, 2, 64, 448),
            train_steps=1200,
            calibration_batches=16,
            perturbed_batches=5,
            held_out=52,
            solved_errors=(0.002, 0.004, 0.008, 0.02, 0.03, 0.045),
            spread_errors=(0.003, 0.006, 0.01, 0.015, 0.025, 0.04),
        ),
    )
}


def risk_setting_named(name: str) -> RiskSetting:
    """The setting called ``name``.

    Raises:
        OptionError: there is none; the message lists those there are.
    """
    if name not in RISK_SETTINGS:
        raise OptionError(f"unknown setting {name!r}; accepted: {', '.join(RISK_SETTINGS)}")
    return RISK_SETTINGS[name]
