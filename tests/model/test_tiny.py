"""Every tool reads the same tokens out of a tiny model's folder; Muon in float32 is torch's Muon up to bfloat16."""

import re
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoProcessor, AutoTokenizer

from policygrain.data.families import CHARACTERS, EOS, FAMILIES, demonstrations, generate
from policygrain.data.families import ENGLISH as families_in_english
from policygrain.model import tiny
from policygrain.model.loading import load_tokenizer
from policygrain.model.tiny import Muon

from ..support.engines import save_tiny

ENGLISH = {family.__name__ for family in families_in_english}  # for pretrained models: they have capital letters
CHARACTER = tiny.character_tokenizer()


def by_vllm(folder: str) -> Any:
    return pytest.importorskip("vllm.tokenizers", reason="vLLM is not installed here").get_tokenizer(folder)


OPENED: dict[str, Callable[[str], Any]] = {
    "this package": load_tokenizer,
    "transformers": AutoTokenizer.from_pretrained,
    "TRL": partial(AutoProcessor.from_pretrained, truncation_side="left", padding_side="left"),
    "vLLM": by_vllm,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Both kinds of tiny models, saved as initial models are."""
    texts = [problem.problem for family in FAMILIES for problem in generate(family, "train", 20, seed=0)]
    kinds = {"characters": CHARACTER, "bpe": tiny.bpe_tokenizer(texts, 300)}
    found = {kind: tmp_path_factory.mktemp(kind) for kind in kinds}
    for kind, tokenizer in kinds.items():
        save_tiny(found[kind], tokenizer)
    return found


@pytest.mark.parametrize("kind", ["characters", "bpe"])
@pytest.mark.parametrize("by", OPENED)
def test_all_tools_read_the_same_tokens(by, kind, folders):
    own = CHARACTER if kind == "characters" else load_tokenizer(str(folders[kind]))
    other = OPENED[by](str(folders[kind]))
    assert (other.pad_token_id, other.eos_token_id, len(other)) == (own.pad_token_id, own.eos_token_id, len(own))
    families = [family for family in FAMILIES if kind == "bpe" or family not in ENGLISH]
    worked = demonstrations(families, "tokens", error_rate=0.1, direct_share=0.2)
    texts = [f"{question}\n{response}{EOS}" for question, response in islice(worked, 200)]
    texts += [f"{problem.problem}\n" for family in families for problem in generate(family, "test", 200, seed=1)]
    for text, ids in zip(texts, own(texts, add_special_tokens=False).input_ids, strict=True):
        assert other(text, add_special_tokens=False).input_ids == ids, text
        assert other.decode(ids) == text


@given(st.lists(st.sampled_from(CHARACTERS), max_size=40))
def test_each_character_is_one_token_with_its_place_as_id(symbols):
    r"""Of any text in these characters, `\\boxed{` included; ids are what models were trained with."""
    text = "".join(symbols)
    ids = CHARACTER.encode(text, add_special_tokens=False)
    assert CHARACTER.decode(ids) == text and all(token < len(CHARACTERS) for token in ids)
    assert [CHARACTERS[token] for token in ids] == re.findall(r"\\boxed\{|<\|pad\|>|<\|end\|>|[\s\S]", text)


def test_updates_are_those_of_torch():
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in [(8, 8), (16, 8), (8, 16), (8, 8)]]
    ours, theirs = ([w.clone().requires_grad_() for w in start] for _ in range(2))
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
