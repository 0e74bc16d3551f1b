"""Models are loaded from folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.model.loading import context_length


def test_the_context_length_of_a_nested_text_configuration(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.Gemma3Config(text_config={"max_position_embeddings": 77}).save_pretrained(tmp_path / "a")
    transformers.Qwen2Config(max_position_embeddings=78).save_pretrained(tmp_path / "b")
    assert [context_length(str(tmp_path / name)) for name in "ab"] == [77, 78]
