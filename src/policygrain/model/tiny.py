"""Tiny models: a small Qwen2 with random weights and its own tokenizer, in the usual Hugging Face classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokenizers import AddedToken, pre_tokenizers, trainers

from ..tasks.characters import BOXED, CHARACTERS, EOS, PAD

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM, Qwen2Tokenizer

    from ..study.schema import TinyModel


def character_tokenizer() -> Qwen2Tokenizer:
    r"""One token per character of the synthetic problems, and one for ``\boxed{``; other characters have none."""
    byte_level = {" ": "Ġ", "\n": "Ċ"}  # as a byte-level vocabulary writes them
    tokenizer = _qwen2({byte_level.get(symbol, symbol): i for i, symbol in enumerate(CHARACTERS)})
    tokenizer.add_tokens([AddedToken(BOXED, normalized=False)])
    return tokenizer


def bpe_tokenizer(texts: Iterable[str], size: int) -> Qwen2Tokenizer:
    """Byte-level BPE with a vocabulary of ``size``, trained on ``texts``; it can encode any text."""
    tokenizer = _qwen2({symbol: i for i, symbol in enumerate((PAD, EOS))})
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.backend_tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _qwen2(vocabulary: dict[str, int]) -> Qwen2Tokenizer:
    """A tokenizer of the class that AutoTokenizer opens for every Qwen2, whatever class its folder names.

    That class splits text in its own way and takes only vocabulary, merges and added tokens from the folder, so that
    these alone may decide which tokens a text has.
    """
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer(
        vocab=vocabulary,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build(spec: TinyModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 of the given shape, initialised at random from ``seed``: tied embeddings, float32."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        max_position_embeddings=spec.context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)
