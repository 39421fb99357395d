from __future__ import annotations

import json
from pathlib import Path

import pytest

from hilore_planner.errors import OptionError
from hilore_planner.grpo.models import SHAPES, model_config

# Numbers of parameters that the models' cards state, in billions.
STATED = {
    "qwen2.5-0.5b": 0.49,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.61,
    "qwen2.5-14b": 14.7,
    "qwen2.5-32b": 32.5,
    "qwen2.5-72b": 72.7,
    "qwen3-0.6b": 0.6,
    "qwen3-1.7b": 1.7,
    "qwen3-4b": 4.0,
    "qwen3-8b": 8.2,
    "qwen3-14b": 14.8,
    "qwen3-32b": 32.8,
    "llama-3.2-1b": 1.23,
    "llama-3.2-3b": 3.21,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.6,
    "llama-3.1-405b": 405.0,
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_the_stated_number_of_parameters(name: str) -> None:
    shape = SHAPES[name]
    attention = shape.hidden * shape.head_size * (2 * shape.heads + 2 * shape.key_heads)
    layer = attention + 3 * shape.hidden * shape.feed_forward
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.is_tied else 2)
    # Norms and biases are left out: well under 0.1%; the cards round to two or three digits.
    found = (shape.layers * layer + embeddings) / 1e9
    assert found == pytest.approx(STATED[name], rel=0.015)


def test_a_config_says_what_the_shape_says() -> None:
    config = model_config("Qwen3-32B")
    assert config.model_type == "qwen3"
    assert (config.num_hidden_layers, config.head_dim, config.hidden_size) == (64, 128, 5120)


def test_a_config_file_is_read_also_by_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3}))
    for written in (path, tmp_path):
        config = model_config(str(written))
        assert (config.model_type, config.num_hidden_layers) == ("llama", 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read the config .*No such file"),
        ("{", r"cannot read the config .*config\.json"),
        ("[]", "has no field model_type"),
        ('{"hidden_size": 64}', "has no field model_type"),
        ('{"model_type": "lama"}', r"\(model_type 'lama'\) is refused: .*lama"),
        ('{"model_type": "llama", "hidden_size": "wide"}', r"\(model_type 'llama'\) is refused"),
        ('{"model_type": "vit"}', "is of 'vit', which is no causal language model"),
    ],
)
def test_refused_configs(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(OptionError, match=message):
        model_config(str(path))


def test_an_unknown_name_has_near_ones() -> None:
    with pytest.raises(
        OptionError, match=r"'qwen2.5-7'; did you mean 'qwen2.5-7b'\?.*llama-3.2-1b"
    ):
        model_config("qwen2.5-7")
