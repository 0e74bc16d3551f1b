"""Parameter counts of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.model import tiny
from policygrain.plan.devices import read_constants
from policygrain.plan.shape import shape_of
from policygrain.study.schema import Model, TinyModel


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
