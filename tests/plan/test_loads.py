"""Parameters of models; operations, seconds and bytes, with the arithmetic written out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.model import tiny
from policygrain.plan import loads as cost
from policygrain.plan.devices import Speed, read_constants
from policygrain.plan.loads import Load, Shape, Texts, shape_of
from policygrain.study.schema import Model, TinyModel

# h = 4, i = 6, one layer, 2 query heads and 1 key head of 2, vocabulary 10.
SMALLEST = Shape(hidden=4, intermediate=6, layers=1, heads=2, kv_heads=1, vocabulary=10, tied=False)


def test_operations_by_hand() -> None:
    # q 4×4+4, k and v 4×2+2 each, o 4×4; feed-forward 3×4×6; norms 2×4 and 4; embedding and output 2×10×4.
    assert SMALLEST.parameters == 20 + 20 + 16 + 72 + 8 + 4 + 80
    assert SMALLEST.multiplied == 220 - 40
    # One prompt of 2 tokens, three responses of 4: 14 tokens. Attention: 4 · 1 · 4 FLOPs a token and token of context;
    # On average 2 prompt tokens attend to 1 token, 12 response tokens to 2 of the prompt and 2 of the response.
    texts = Texts(1, 2, 3, 4)
    flops = 2 * 180 * 14 + 16 * (2 * 1 + 12 * 4)
    assert cost.score(SMALLEST, 5, texts) == Load(calls=3, flops=flops)
    assert cost.update(SMALLEST, 5, texts, steps=2) == Load(calls=4, flops=3 * flops)
    assert cost.update(SMALLEST, 5, texts, checkpointing=True).flops == 4 * flops
    # Two bytes a number: 8 steps read 220 weights each, 12 tokens the keys and values (2 each) of 4 tokens.
    assert cost.decode(SMALLEST, 2, texts, longest=8, sequences=64) == Load(8, flops, 8 * 440 + 12 * 4 * 4 * 2)
    assert cost.decode(SMALLEST, 2, texts, longest=8, sequences=1).calls == 12
    assert Speed(call=2.0, rate=10.0, bandwidth=5.0).seconds(Load(3, 40, 50)) == 6 + 4 + 10


def test_memory_by_hand() -> None:
    texts = {"micro": 10, "sequences": 3, "context": 5, "checkpointing": False}
    held = cost.memory(SMALLEST, width=4, compute=2, devices=4, sharded=True, **texts)
    assert (held.weights, held.gradients, held.optimizer, held.reference) == (220, 220, 440, 0)
    # Embedding and output layer, and the only layer with the last norm twice.
    assert held.gathered == 2 * (80 + 2 * 140)
    # A token and layer: 4 × 4 + 2 × 4 + 2 × 2 + 4 × 6 numbers. Logits thrice in float32. A token's cache: 4 numbers.
    assert (held.activations, held.output_layer) == (10 * 52 * 2, 3 * 4 * 10 * 10)
    assert (held.engine_weights, held.engine_cache) == (440, 3 * 5 * 4 * 2)
    assert held.total == 220 + 440 + 720 + (220 + 1040 + 1200) + 440 + 120
    unsharded = cost.memory(SMALLEST, width=4, compute=4, devices=4, sharded=False, **texts)
    assert (unsharded.weights, unsharded.optimizer, unsharded.gathered, unsharded.reference) == (880, 1760, 0, 880)
    # Beyond a small vocabulary: one block of 4,096 tokens × 8,192 words, and the output layer's gradient.
    assert cost.output_layer_bytes(replace(SMALLEST, vocabulary=100_000), 8192) == 4 * (3 * 4096 * 8192 + 400_000)


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
    assert shape_of(Model(start=name), read_constants().shapes).parameters == parameters


def test_the_shape_of_a_tiny_model_equals_that_of_the_built_model(tmp_path: Path) -> None:
    spec = TinyModel(hidden=64, intermediate=96, layers=3, heads=2)
    built = tiny.build(spec, tiny.character_tokenizer(), seed=0)
    expected = shape_of(Model(tiny=spec), {})
    assert expected.parameters == sum(p.numel() for p in built.parameters())
    built.config.save_pretrained(tmp_path)
    assert shape_of(Model(start=str(tmp_path)), {}) == expected


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(UserError, match=r"model\.start: the shape of 'some/thing' is not known"):
        shape_of(Model(start="some/thing"), {})
