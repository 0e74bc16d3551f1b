"""Parameters of models, and memory, with the arithmetic written out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policygrain.commands import shapes
from policygrain.commands.cost import constants
from policygrain.commands.shapes import Shape, memory, shape_of
from policygrain.errors import UserError
from policygrain.model import logprobs, tiny
from policygrain.study.schema import Model, TinyModel

from ..support.small import small_study

# h = 4, i = 6, one layer, 2 query heads and 1 key head of 2, vocabulary 10.
SMALLEST = Shape(hidden=4, intermediate=6, layers=1, heads=2, kv_heads=1, vocabulary=10, tied=False)


def test_parameters_by_hand() -> None:
    # q 4×4+4, k and v 4×2+2 each, o 4×4; feed-forward 3×4×6; norms 2×4 and 4; embedding and output 2×10×4.
    assert SMALLEST.parameters == 20 + 20 + 16 + 72 + 8 + 4 + 80
    assert SMALLEST.multiplied == 220 - 40


def test_memory_by_hand() -> None:
    training = {"micro_batch_tokens": 100, "max_tokens": 12, "prompts_per_step": 8, "group": 4, "compute": "bfloat16"}
    sharded = small_study(training={**training, "trainer": "trl", "trl": {"fsdp": True}, "engine": "vllm"})
    held = memory(SMALLEST, sharded, prompt=3, response=2, devices=2)
    assert (held["weights"], held["gradients"], held["AdamW"]) == (440, 440, 880)
    # Embedding and output layer, and the only layer with the last norm twice.
    assert held["gathered layers"] == 2 * (80 + 2 * 140)
    # A token and layer: 4 × 4 + 2 × 4 + 2 × 2 + 4 × 6 numbers. Logits thrice in float32.
    assert (held["activations"], held["output layer"]) == (100 * 52 * 2, 3 * 4 * 100 * 10)
    # 8 × 4 responses on two devices, each of 3 + 2 tokens with 4 numbers in the cache.
    assert (held["engine's weights"], held["engine's cache"]) == (440, 16 * 5 * 4 * 2)
    alone = memory(SMALLEST, small_study(training={**training, "compute": "float32"}), 3, 2, 1)
    assert (alone["weights"], alone["AdamW"], alone["gathered layers"]) == (880, 1760, 0)
    adapter = memory(SMALLEST, small_study(model={"lora": {"rank": 3}}), 3, 2, 1)
    # Sums of input and output: q and o 4+4, k and v 4+2, gate, up and down 4+6.
    assert (adapter["weights"], adapter["gradients"], adapter["AdamW"]) == (4 * (220 + 174), 4 * 174, 8 * 174)
    # Beyond a small vocabulary: one block of 2,048 tokens × all words, and the output layer's gradient.
    large = Shape(hidden=4, intermediate=6, layers=1, heads=2, kv_heads=1, vocabulary=100_000, tied=False)
    many = small_study(training={**training, "micro_batch_tokens": 8192})
    assert memory(large, many, 3, 2, 1)["output layer"] == 4 * (3 * 2048 * 100_000 + 400_000)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
    ],
)
def test_parameter_counts_equal_those_on_the_hub(name: str, parameters: int) -> None:
    assert shape_of(Model(start=name), constants()["shapes"]).parameters == parameters


def test_the_shape_of_a_tiny_model_equals_that_of_the_built_model(tmp_path: Path) -> None:
    spec = TinyModel(hidden=64, intermediate=96, layers=3, heads=2)
    built = tiny.build(spec, tiny.character_tokenizer(), seed=0)
    expected = shape_of(Model(tiny=spec), {})
    assert expected.parameters == sum(p.numel() for p in built.parameters())
    built.config.save_pretrained(tmp_path)
    assert shape_of(Model(start=str(tmp_path)), {}) == expected
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_key_value_heads": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of(Model(start=str(tmp_path)), {}) == expected, "as many as query heads"


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(UserError, match=r"model\.start: the shape of 'some/thing' is not known"):
        shape_of(Model(start="some/thing"), {})


def test_constants_repeated_here_equal_those_of_the_trainer() -> None:
    """They are repeated so that an estimate does not import torch."""
    assert (logprobs.PLAIN_VOCABULARY, logprobs.BLOCKS["cuda"]) == (shapes.PLAIN_VOCABULARY, shapes.BLOCK)
