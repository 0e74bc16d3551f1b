"""A made-up training batch for the real `update`."""

from __future__ import annotations

from typing import Any

import torch

from policygrain.model.sequences import Sequences
from policygrain.objective.batch import TokenBatch
from policygrain.train.update import TrainingBatch


def random_batch(rows: int = 10, prompt: int = 9, width: int = 14, pad: tuple[int, int] = (0, 0)) -> TrainingBatch:
    """A batch of made-up responses to half as many prompts; ``pad`` adds columns before prompts and after responses."""
    generator = torch.Generator().manual_seed(3)
    left, right = pad
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    prompt_lengths = torch.randint(1, prompt + 1, (rows // 2,), generator=generator)
    prompts = torch.randint(3, 40, (rows // 2, prompt), generator=generator)
    ids = torch.randint(3, 40, (rows, width), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    loss_mask = mask.clone()
    loss_mask[2] = False  # a truncated response that is left out of the loss
    noise = torch.randn((4, rows, width), generator=generator)
    tokens = {
        "log_probs": noise[0] * 0.1 - 3,
        "old_log_probs": noise[0] * 0.1 - 3,
        "entropy": noise[1].abs(),
        "old_entropy": 2 + noise[1].abs(),
        "ref_log_probs": noise[2] * 0.1 - 3,
        "rollout_weights": noise[3].abs(),
        "rollout_log_probs": noise[0] * 0.1 - 3.1 + noise[2] * 0.01,
        "old_future_log_probs": noise[0] * 0.1 - 12,
    }

    def padded(x: torch.Tensor, left: int, right: int, value: Any = 0) -> torch.Tensor:
        return torch.nn.functional.pad(x, (left, right), value=value)

    return TrainingBatch(
        Sequences(
            prompts=padded(prompts, left, 0),
            prompt_mask=padded(torch.arange(prompt) >= prompt - prompt_lengths[:, None], left, 0),
            prompt_of=torch.arange(rows) // 2,
            ids=padded(ids, 0, right),
            mask=padded(mask, 0, right),
            attention=padded(mask, 0, right),
        ),
        TokenBatch(
            advantages=torch.randn(rows, generator=generator),
            staleness=torch.arange(rows) % 4,
            mask=padded(loss_mask, 0, right),
            max_length=20,
            groups=torch.arange(rows) // 2,
            segments=padded(torch.randint(0, 3, (rows, width), generator=generator).cumsum(1), 0, right),
            **{k: padded(v, 0, right, 7.0) for k, v in tokens.items()},
        ),
    )
