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


def gradients(model: torch.nn.Module, batch: Batch, plan: Path, memory_cap: str) -> torch.Tensor:
    """Gradients of one update compiled under a cap, as one vector."""
    torch.compiler.reset()
    loss = actor_loss(model, prompt=PROMPT)
    update = torch.compile(
        loss, backend="hilore", options={"memory_cap": memory_cap, "plan": str(plan)}
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
    for share in (0.15, 0.3, 0.5):
        cap_bytes = peak_bytes - int(share * saved_bytes)
        solved = plan.solve(memory_cap=cap_bytes)
        print(
            f"   cap {format_bytes(cap_bytes):>10}: saved {format_bytes(solved.solution.saved_bytes):>10}, "
            f"added time {solved.solution.objective_ns / 1e6:.2f} ms"
        )
    solved.save(tight)

    print("\n3. The update under the tightest of them:")
    planned = gradients(model, batch, tight, "80%")
    error = ((planned - reference).norm() / reference.norm()).item()
    print(f"   gradients differ from those of step 1 by {error:.1e} of their norm\n")
    print(solved.summary())
    print(f"\nTo see every unit: hilore show {tight}; what changed: hilore diff {roomy} {tight}")


if __name__ == "__main__":
    main()
