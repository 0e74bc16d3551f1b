"""Micro-batches of prompts and responses."""

from __future__ import annotations

import torch

from policygrain.model.sequences import micro_batches, pack

from ..support.engines import random_token_ids


def test_micro_batches_hold_every_row_once_within_the_budget() -> None:
    sequences = pack(*random_token_ids(50, 30, 60), 0, torch.device("cpu"))
    cut = micro_batches(sequences, 400)
    assert sorted(torch.cat(cut).tolist()) == list(range(50))
    parts = [sequences.rows(rows) for rows in cut]
    sizes = [int(part.mask.sum() + part.prompt_mask.sum()) for part in parts]
    assert max(sizes) <= 400 and len(cut) > 1
    assert sum(int(part.mask.sum()) for part in parts) == int(sequences.mask.sum())
    assert [len(rows) for rows in micro_batches(sequences, 1)] == [1] * 50
