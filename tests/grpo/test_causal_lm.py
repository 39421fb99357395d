"""``log_probs`` of a model is what its own logits give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hilore_planner import grpo
from hilore_planner.backend import hilore
from hilore_planner.errors import OptionError
from hilore_planner.plan import PlacementPlan

SIZES = {
    "vocab_size": 53,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model(kind: str, **more: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES, **more)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()  # type: ignore[no-untyped-call]


IDS = torch.randint(3, 53, (2, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])


def expected(lm: Any, temperature: float = 1.0, **inputs: Any) -> torch.Tensor:
    logits = lm(input_ids=IDS, use_cache=False, **inputs).logits[:, :-1] / temperature
    found: torch.Tensor = logits.log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0]
    return found


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen2", {"tie_word_embeddings": True}),
        ("llama", {"tie_word_embeddings": False}),
        ("gemma2", {"final_logit_softcapping": 0.2, "head_dim": 8}),
        ("granite", {"logits_scaling": 4.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("phi", {}),  # its head has a bias
    ],
)
def test_it_is_the_softmax_of_the_models_logits(kind: str, more: dict[str, Any]) -> None:
    lm = model(kind, **more)
    got = grpo.log_probs(lm, IDS, attention_mask=MASK, temperature=0.7)
    rows = MASK[:, :-1].bool()
    torch.testing.assert_close(got[rows], expected(lm, 0.7, attention_mask=MASK)[rows])


def test_the_last_tokens_are_kept_and_adapters_are_seen_through() -> None:
    peft = pytest.importorskip("peft")
    lm = model("qwen2")
    adapted = peft.get_peft_model(lm, peft.LoraConfig(r=2, target_modules="all-linear"))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight)
    got = grpo.log_probs(adapted, IDS, logits_to_keep=4)
    torch.testing.assert_close(got, expected(adapted)[:, -4:])


@pytest.mark.parametrize("kept", [0, 9, -1])
def test_there_must_be_a_token_before_each(kept: int) -> None:
    with pytest.raises(OptionError, match=f"logits_to_keep: {kept} is not between 1 and 8"):
        grpo.log_probs(model("qwen2"), IDS, logits_to_keep=kept)


def test_a_head_that_is_no_linear_layer_is_named() -> None:
    lm = model("qwen2")
    lm.lm_head = nn.Sequential(lm.lm_head)
    with pytest.raises(OptionError, match="its head is a Sequential"):
        grpo.log_probs(lm, IDS)


def test_the_head_is_cut_where_a_model_is_called_this_way(tmp_path: Path) -> None:
    lm = model("qwen2", tie_word_embeddings=True).float()
    plan = tmp_path / "plan.json"

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return -grpo.log_probs(lm, ids, logits_to_keep=5).mean()

    compiled: Any = torch.compile(
        loss, backend=hilore, dynamic=False, options={"head": 2, "plan": str(plan)}
    )
    compiled(IDS).backward()
    head = PlacementPlan.load(plan).head
    assert head is not None
    assert head.chunks == 2
    got = {name: p.grad.clone() for name, p in lm.named_parameters()}
    lm.zero_grad()
    (-expected(lm)[:, -5:].mean()).backward()  # type: ignore[no-untyped-call]
    for name, parameter in lm.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)
