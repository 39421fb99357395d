"""Plan a small GRPO update, solve the plan for less memory, and run the update under it.

Takes a minute or two on a CPU and needs no model files: the weights are random.
"""

from __future__ import annotations

from pathlib import Path

import torch

from hilore_planner import PlacementPlan
from hilore_planner.grpo.actor import Batch, actor_loss, build_qwen2, random_batch
from hilore_planner.sizes import format_bytes

PROMPT, RESPONSE, VOCABULARY = 32, 96, 2048


def gradients(
    model: torch.nn.Module, batch: Batch, plan: Path, memory_cap: str | int
) -> torch.Tensor:
    """Gradients of one update compiled under a cap, as one vector."""
    torch.compiler.reset()
    update = torch.compile(
        actor_loss(model, prompt=PROMPT),
        backend="hilore",
        options={"memory_cap": memory_cap, "plan": str(plan)},
    )
    model.zero_grad()
    update(*batch).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = Path(".demo")
    folder.mkdir(exist_ok=True)
    roomy, tight = folder / "roomy.json", folder / "tight.json"
    for path in (roomy, tight):
        path.unlink(missing_ok=True)
    model = build_qwen2(
        dtype=torch.float32,
        device=device,
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    batch = random_batch(
        sequences=4, prompt=PROMPT, response=RESPONSE, vocab_size=VOCABULARY, device=device
    )

    print("1. The update with all the memory it likes; its plan is written to a file.")
    reference = gradients(model, batch, roomy, "80%")
    plan = PlacementPlan.load(roomy)

    print("\n2. The same plan solved for other caps, with no GPU and no model:")
    peak_bytes, saved_bytes = plan.predicted_peak_bytes, plan.solution.saved_bytes
    caps = [peak_bytes - int(share * saved_bytes) for share in (0.15, 0.3, 0.5)]
    for cap_bytes, solved in zip(caps, plan.sweep(caps), strict=True):
        saved, added_ms = solved.solution.saved_bytes, solved.solution.objective_ns / 1e6
        print(
            f"   cap {format_bytes(cap_bytes):>9}: {solved.solution.status}, "
            f"{format_bytes(saved)} saved, {added_ms:.2f} ms added"
        )

    print("\n3. The update compiled under the second of them:")
    planned = gradients(model, batch, tight, caps[1])
    error = ((planned - reference).norm() / reference.norm()).item()
    print(f"   gradients differ from those of step 1 by {error:.1e} of their norm\n")
    print(PlacementPlan.load(tight).summary())
    print(f"\nTo see every unit: hilore show {tight}; what changed: hilore diff {roomy} {tight}")


if __name__ == "__main__":
    main()
