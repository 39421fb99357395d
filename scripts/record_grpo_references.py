r"""Record losses and gradients of TRL, verl and OpenRLHF, run by themselves, as test fixtures.

Each framework's own functions are called on small random batches; nothing of this project is
imported. What the functions would get from a trainer is stood in for by plain objects.

Install, in an environment of its own that has torch, and run from the repository's root:

    python -m venv .venv-references
    .venv-references/bin/pip install torch numpy transformers accelerate datasets \
        omegaconf hydra-core tensordict codetiming ray orjson pillow
    .venv-references/bin/pip install --no-deps trl==1.16.0 verl==0.9.1 openrlhf==0.11.2
    .venv-references/bin/python scripts/record_grpo_references.py
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from grpo_references import from_openrlhf, from_trl, from_verl
from torch import Tensor

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "grpo"
GROUPS, GROUP_SIZE, WIDTH = 3, 3, 4
DTYPES = {"float32": torch.float32, "float64": torch.float64}
Options = dict[str, Any]


# ---- batches ------------------------------------------------------------------------------------


def make_batch(seed: int, *, drift: float) -> dict[str, list[Any]]:
    """Three groups of three: mixed, constant reward (zero advantage), mixed with a truncated row."""
    generator = torch.Generator().manual_seed(seed)
    rows = GROUPS * GROUP_SIZE

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    log_probs = -noise(rows, WIDTH).abs() - 0.05
    advantages = noise(rows)
    advantages[GROUP_SIZE : 2 * GROUP_SIZE] = 0.0
    lengths = torch.randint(1, WIDTH + 1, (rows, 1), generator=generator)
    lengths[0] = WIDTH
    mask = (torch.arange(WIDTH) < lengths).long()
    mask[-1] = 0  # a truncated completion that is masked out
    return {
        name: value.tolist()
        for name, value in {
            "log_probs": log_probs,
            "old_log_probs": log_probs + drift * noise(rows, WIDTH),
            "ref_log_probs": log_probs + 0.3 * noise(rows, WIDTH),
            "sampling_log_probs": log_probs + 0.2 * noise(rows, WIDTH),
            "is_weights": 0.5 + torch.rand(rows, WIDTH, generator=generator, dtype=torch.float64),
            "entropies": noise(rows, WIDTH).abs(),
            "advantages": advantages,
            "mask": mask,
        }.items()
    }


BATCHES = {
    "drifted": make_batch(1, drift=0.3),
    "far": make_batch(2, drift=1.5),
    "on_policy": make_batch(3, drift=0.0),
}


def tensors(batch: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """A batch's tensors, the mask as integers and the rest in ``dtype``."""
    values = {name: torch.tensor(value, dtype=dtype) for name, value in BATCHES[batch].items()}
    return values | {"mask": torch.tensor(BATCHES[batch]["mask"])}


def record(run: Any, options: Options, batch: str, inputs: Options, seed: int = 0) -> list[Any]:
    """Loss and gradients of one configuration in each dtype."""
    rows = []
    for name, dtype in DTYPES.items():
        values = tensors(batch, dtype)
        leaves = [values["log_probs"].requires_grad_(), values["entropies"].requires_grad_()]
        torch.manual_seed(seed)
        loss = run(options, values, inputs)
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        row = {"options": options, "inputs": inputs, "batch": batch, "dtype": name, "seed": seed}
        row["loss"] = number(loss.item(), name)
        row["gradient"] = numbers(grads[0], name)
        if grads[1] is not None and bool(grads[1].any()):
            row["entropy_gradient"] = numbers(grads[1], name)
        rows.append(row)
    return rows


def number(value: float, dtype: str) -> float:
    """``value`` with the digits its dtype carries."""
    return float(f"{value:.{9 if dtype == 'float32' else 16}g}")


def numbers(values: Tensor, dtype: str) -> list[Any]:
    """A matrix as nested lists."""
    return [[number(x, dtype) for x in row] for row in values.tolist()]


# ---- advantages ---------------------------------------------------------------------------------


def advantage_cases() -> list[Any]:
    """Rewards that are random, binary, and constant but not exact in binary."""
    generator = torch.Generator().manual_seed(0)
    rewards = {
        "random": torch.rand(24, generator=generator, dtype=torch.float64).tolist(),
        "binary": torch.randint(0, 2, (24,), generator=generator).tolist() + [1] * 8 + [0] * 8,
        "constant": [0.3] * 8,
    }
    kinds = [("trl", scale) for scale in ("group", "batch", "none")]
    kinds += [("verl", kind) for kind in ("group", "none", "vectorized-group", "vectorized-none")]
    rows = []
    for (framework, kind), (name, values) in ((k, r) for k in kinds for r in rewards.items()):
        tensor = torch.tensor(values, dtype=torch.float32)
        trl, verl = from_trl.trl_advantages, from_verl.verl_advantages
        run = trl if framework == "trl" else verl
        advantages = [number(x, "float32") for x in run(tensor, 8, kind).tolist()]
        row = {"framework": framework, "kind": kind, "rewards": name, "group_size": 8}
        rows.append(row | {"advantages": advantages})
    return [rewards, rows]


def write(name: str, content: dict[str, Any]) -> None:
    """One fixture file, a row a line."""
    FIXTURES.mkdir(parents=True, exist_ok=True)
    head = {k: v for k, v in content.items() if k != "rows"}
    lines = [f'"{k}": {json.dumps(v)}' for k, v in head.items()]
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in content["rows"])
    text = "{\n" + ",\n".join(lines) + f',\n"rows": [\n{rows}\n]\n}}\n'
    (FIXTURES / f"{name}.json").write_text(text)


def main() -> None:
    """Record every fixture."""
    frameworks = {
        "trl": (from_trl.trl_loss, from_trl.trl_cases, from_trl.trl_defaults),
        "verl": (from_verl.verl_loss, from_verl.verl_cases, from_verl.verl_defaults),
        "openrlhf": (
            from_openrlhf.openrlhf_loss,
            from_openrlhf.openrlhf_cases,
            from_openrlhf.openrlhf_defaults,
        ),
    }
    for name, (run, cases, defaults) in frameworks.items():
        content = {"version": version(name), "torch": torch.__version__, "batches": BATCHES}
        content["defaults"] = defaults()
        content["rows"] = [row for case in cases() for row in record(run, *case)]
        write(name, content)
    rewards, rows = advantage_cases()
    write("advantages", {"torch": torch.__version__, "rewards": rewards, "rows": rows})


if __name__ == "__main__":
    main()
