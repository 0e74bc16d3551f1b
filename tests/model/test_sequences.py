"""Micro-batches of prompts and responses, and segments of responses by the texts that end them."""

from __future__ import annotations

import torch

from policygrain.model import tiny
from policygrain.model.sequences import micro_batches, pack, segment_ids

from ..support.engines import random_token_ids


def test_micro_batches_hold_every_row_once_within_the_budget() -> None:
    sequences = pack(*random_token_ids(50, 30, 60), 0)
    cut = micro_batches(sequences, 400)
    assert sorted(torch.cat(cut).tolist()) == list(range(50))
    parts = [sequences.rows(rows) for rows in cut]
    sizes = [int(part.mask.sum() + part.prompt_mask.sum()) for part in parts]
    assert max(sizes) <= 400 and len(cut) > 1
    assert sum(int(part.mask.sum()) for part in parts) == int(sequences.mask.sum())
    assert [len(rows) for rows in micro_batches(sequences, 1)] == [1] * 50


def test_micro_batches_hold_whole_groups_where_they_fit() -> None:
    """Three rows have the same prompt; only groups that are larger than the budget are divided."""
    sequences = pack(*random_token_ids(60, 30, 60), 0)
    tokens = sequences.mask.sum(1)
    for budget in (150, 250, 1000):
        cut = micro_batches(sequences, budget)
        for prompt in range(len(sequences.prompts)):
            rows = (sequences.prompt_of == prompt).nonzero().flatten().tolist()
            parts = [part for part in cut if set(rows) & set(part.tolist())]
            whole = int(tokens[rows].sum() + sequences.prompt_mask[prompt].sum())
            assert len(parts) == 1 or whole > budget


def test_a_token_with_an_end_in_it_is_the_last_of_its_segment() -> None:
    """Two lines and a rest; without an end a response is one segment."""
    tokenizer = tiny.character_tokenizer()
    texts = ["1+2\n3\n4", "12345"]
    rows = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    sequences = pack([[5]] * 2, rows, tokenizer.pad_token_id)
    found = segment_ids(sequences, tokenizer, ["\n"])
    assert found[0].tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert found[1, :5].tolist() == [0] * 5
    assert segment_ids(sequences, tokenizer, ["\n", "+"])[0].tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert not segment_ids(sequences, tokenizer, ["no such text"]).any()
