"""Digests: equal for equal content, different for every change that a model's output depends on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain import digests
from policygrain.errors import UserError

FILES = {
    "model-00001-of-00002.safetensors": "weights, first part",
    "model-00002-of-00002.safetensors": "weights, second part",
    "pytorch_model.bin": "weights in the older format",
    "model.safetensors.index.json": "which part holds which weight",
    "config.json": "shape",
    "generation_config.json": "end-of-sequence tokens",
    "adapter_config.json": "scale of a LoRA adapter",
    "tokenizer.json": "vocabulary",
    "tokenizer_config.json": "special tokens",
    "tokenizer.model": "SentencePiece",
    "vocab.json": "vocabulary",
    "merges.txt": "BPE merges",
    "added_tokens.json": "further tokens",
    "special_tokens_map.json": "special tokens",
    "chat_template.jinja": "how messages become a prompt",
    "modeling_custom.py": "custom code",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@given(st.text())
def test_the_short_digest_is_the_beginning_of_sha_256(content: str) -> None:
    expected = hashlib.sha256(content.encode()).hexdigest()
    assert digests.of_text(content, full=True) == expected
    assert digests.of_text(content) == expected[:16]


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_the_order_of_keys_does_not_change_the_digest_of_json(value: dict[str, object]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert digests.of_json(backwards) == digests.of_json(value)
    assert digests.of_json({**value, "one more": 1}) != digests.of_json({**value, "one more": 2})


def test_text_json_and_files_have_the_digest_of_their_bytes(tmp_path: Path) -> None:
    value = {"b": "π", "a": [1, 2.5, None]}
    text = json.dumps(value, sort_keys=True)
    (tmp_path / "file").write_text(text)
    assert digests.of_json(value) == digests.of_text(text) == digests.of_file(tmp_path / "file")


@pytest.mark.parametrize("name", FILES)
def test_a_change_of_any_file_that_output_depends_on_changes_a_model_s_digest(model: Path, name: str) -> None:
    before = digests.of_model(model)
    (model / name).write_text("something else")
    changed = digests.of_model(model)
    (model / name).unlink()
    assert len({before, changed, digests.of_model(model)}) == 3


def test_exchanging_the_content_of_two_files_changes_a_model_s_digest(model: Path) -> None:
    before = digests.of_model(model)
    first, second = (model / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    content = first.read_text()
    first.write_text(second.read_text())
    second.write_text(content)
    assert digests.of_model(model) != before


def test_other_files_and_the_folder_s_name_do_not_change_a_model_s_digest(model: Path) -> None:
    before = digests.of_model(model)
    (model / "README.md").write_text("a model card")
    (model / "start.json").write_text('{"digest": "of an earlier save"}')
    renamed = model.rename(model.with_name("renamed"))
    assert digests.of_model(renamed) == before


def test_a_missing_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder with a model"):
        digests.of_model(tmp_path / "missing")


def test_a_large_file_that_has_not_changed_is_not_read_again(
    model: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(digests, "LARGE", len("weights, second part"))
    first = digests.of_model(model, remembered=True)
    assert first == digests.of_model(model)
    read: list[str] = []
    of_file = digests.of_file
    monkeypatch.setattr(digests, "of_file", lambda path, full=False: read.append(path.name) or of_file(path, full))
    assert digests.of_model(model, remembered=True) == first
    large = {name for name, content in FILES.items() if len(content) >= digests.LARGE}
    assert large and not large & set(read)
    weights = model / "model-00002-of-00002.safetensors"
    weights.write_text("weights, other part!")  # as long as before
    os.utime(weights, ns=(0, 1))
    assert digests.of_model(model, remembered=True) == digests.of_model(model) != first
