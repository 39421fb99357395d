"""What is measured: a model shape with a batch, and the ways to run its update."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Literal

from hilore_planner.errors import OptionError

Kind = Literal["eager-gc", "gc", "inductor", "budget", "hilore"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A model and a microbatch; weights and tokens are random with ``seed``.

    Attributes:
        layers: fewer than the model has, for quick runs; None: all.
        lora: rank of adapters on the seven projections; 0: every weight is trained.
        accumulate: gradients of an earlier microbatch are there already.
        dead: how many of the sequences have zero advantage.
    """

    name: str
    model: str
    sequences: int
    prompt: int
    response: int
    layers: int | None = None
    lora: int = 0
    accumulate: bool = False
    dead: int = 0
    dtype: str = "bfloat16"
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and response tokens of one update."""
        return self.sequences * (self.prompt + self.response)

    def shortened(self, layers: int) -> Setting:
        """The same with fewer layers, and a name that says so."""
        return replace(self, layers=layers, name=f"{self.name}-{layers}layers")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the update.

    Attributes:
        kind: ``eager-gc`` and ``gc`` are transformers' gradient checkpointing, without and with compilation;
            ``inductor`` is compiled and unplanned; ``budget`` is torch's activation_memory_budget.
        cap_bytes, gradient_error: of ``hilore``.
        budget: of ``budget``.
        drop_dead: leave out the sequences without a gradient.
        head: of ``hilore``: ``auto``, ``off`` or a number of chunks.
        costs: of ``hilore``: where its times come from.
        attribute: of ``hilore``: also say which kernels take longer than predicted.
        turns: how often it is timed, each time after the others were.
    """

    name: str
    kind: Kind
    cap_bytes: int | None = None
    gradient_error: float = 0.0
    budget: float = 1.0
    drop_dead: bool = False
    head: int | str = "auto"
    costs: str = "auto"
    attribute: bool = False
    turns: int = 1

    def as_dict(self) -> dict[str, object]:
        """Plain data, for another process."""
        return asdict(self)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("qwen2.5-0.5b", "qwen2.5-0.5b", 8, 512, 2048),
        Setting("qwen2.5-1.5b", "qwen2.5-1.5b", 4, 512, 2048),
        Setting("qwen2.5-7b", "qwen2.5-7b", 4, 512, 2048),
        Setting("qwen2.5-32b", "qwen2.5-32b", 4, 512, 2048),
        Setting("qwen2.5-0.5b-gsm8k", "qwen2.5-0.5b", 35, 256, 768, dead=22),
        Setting("tiny", "tiny", 4, 32, 96, dtype="float32"),
        Setting("qwen2.5-3b-lora16", "qwen2.5-3b", 4, 1024, 2048, lora=16),
    )
}


def setting_named(name: str) -> Setting:
    """The setting called ``name``; ``NAME:LAYERS`` is the same with fewer layers.

    Raises:
        OptionError: there is none; the message lists those there are.
    """
    known, _, layers = name.partition(":")
    if known not in SETTINGS or (layers and not layers.isdigit()):
        raise OptionError(
            f"unknown setting {name!r}; accepted: NAME or NAME:LAYERS, NAME one of {', '.join(SETTINGS)}"
        )
    found = SETTINGS[known]
    return found.shortened(int(layers)) if layers else found


def device_here(name: str) -> str:
    """The device called ``name``, if it can be measured on.

    Raises:
        OptionError: it is neither the CPU nor CUDA, or there is no GPU.
    """
    import torch

    here = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if name.partition(":")[0] not in here:
        raise OptionError(f"--device is {name!r}; accepted on this machine: {', '.join(here)}")
    return name
