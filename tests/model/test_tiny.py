"""Every tool reads the same tokens out of a tiny model's folder; Muon in float32 is torch's Muon up to bfloat16."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.data.characters import CHARACTERS, EOS
from policygrain.data.families import FAMILIES, demonstrations, generate
from policygrain.model import tiny
from policygrain.model.loading import load_tokenizer
from policygrain.model.tiny import Muon, orthogonalised

from ..support.engines import save_tiny

ENGLISH = ("plain_sum", "word_problem", "char_count")  # for pretrained models: they have capital letters
CHARACTER = tiny.character_tokenizer()


def by_auto_tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def by_trl(folder: str) -> Any:
    """As its GRPOTrainer does."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder, truncation_side="left", padding_side="left")


def by_vllm(folder: str) -> Any:
    get_tokenizer = pytest.importorskip("vllm.tokenizers", reason="vLLM is not installed here").get_tokenizer
    return get_tokenizer(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both kinds of tiny models, saved as initial models are."""
    texts = [problem.problem for family in FAMILIES for problem in generate(family, "train", 20, seed=0)]
    kinds = {"characters": tiny.character_tokenizer(), "bpe": tiny.bpe_tokenizer(texts, 300)}
    found = {kind: tmp_path_factory.mktemp(kind) for kind in kinds}
    for kind, tokenizer in kinds.items():
        save_tiny(found[kind], tokenizer, hidden=8, intermediate=8)
    return found


@pytest.mark.parametrize("kind", ["characters", "bpe"])
@pytest.mark.parametrize("opened", [load_tokenizer, by_auto_tokenizer, by_trl, by_vllm], ids=lambda f: f.__name__)
def test_all_tools_read_the_same_tokens(opened: Callable[[str], Any], kind: str, folders: dict[str, Path]) -> None:
    own = tiny.character_tokenizer() if kind == "characters" else load_tokenizer(str(folders[kind]))
    other = opened(str(folders[kind]))
    assert (other.pad_token_id, other.eos_token_id, len(other)) == (own.pad_token_id, own.eos_token_id, len(own))
    families = [family for family in FAMILIES if kind == "bpe" or family not in ENGLISH]
    worked = demonstrations(families, "tokens", error_rate=0.1, direct_share=0.2)
    texts = [f"{question}\n{response}{EOS}" for question, response in islice(worked, 200)]
    for family in families:
        for split in ("train", "validation", "test"):
            texts += [f"{problem.problem}\n" for problem in generate(family, split, 200, seed=1)]
    for text, ids in zip(texts, own(texts, add_special_tokens=False).input_ids, strict=True):
        assert other(text, add_special_tokens=False).input_ids == ids, text
        assert other.decode(ids) == text


@given(st.lists(st.sampled_from(CHARACTERS), max_size=40))
def test_each_character_is_one_token_with_its_place_as_id(symbols: list[str]) -> None:
    r"""Of any text in these characters, `\\boxed{` included; ids are what models were trained with."""
    text = "".join(symbols)
    ids = CHARACTER.encode(text, add_special_tokens=False)
    assert CHARACTER.decode(ids) == text and all(token < len(CHARACTERS) for token in ids)
    assert [CHARACTERS[token] for token in ids] == re.findall(r"\\boxed\{|<\|pad\|>|<\|end\|>|[\s\S]", text)


def test_updates_are_those_of_torch() -> None:
    torch.manual_seed(0)
    shapes = [(8, 8), (16, 8), (8, 16), (8, 8)]
    start = [torch.randn(shape) for shape in shapes]
    ours = [w.clone().requires_grad_() for w in start]
    theirs = [w.clone().requires_grad_() for w in start]
    optimizers = [
        Muon(ours, lr=0.1, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn="original"),
    ]
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, before in zip(ours, theirs, start, strict=True):
        difference, moved = (one - other).norm().item(), (other - before).norm().item()
        assert 0 < difference < 0.02 * moved  # torch iterates in bfloat16


@pytest.mark.parametrize("shape", [(3, 6, 4), (3, 4, 6)])
def test_singular_values_are_moved_close_to_1(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert values.min() > 0.6 and values.max() < 1.3
    alone = orthogonalised(matrices[1:2])
    assert torch.allclose(orthogonalised(matrices)[1], alone[0], atol=1e-5)
