"""A made-up training batch for the real `update`."""

import torch
from torch import Tensor

from policygrain.integrations.conformance import random_fields
from policygrain.model.device import device
from policygrain.model.engine import Rollout
from policygrain.objective.batch import TokenBatch
from policygrain.train.batch import Batch

# About what an untrained model gives each token, so that ratios are not far from 1.
MEANS = {"log_probs": -3, "old_log_probs": -3, "ref_log_probs": -3, "rollout_log_probs": -3.1}
MEANS |= {"old_future_log_probs": -12, "old_entropy": 2, "entropy": 0}


def random_batch() -> Batch:
    """Ten responses to five prompts."""
    generator = torch.Generator().manual_seed(3)

    def tokens(length: int) -> list[int]:
        return torch.randint(3, 40, (length,), generator=generator).tolist()

    lengths = torch.randint(1, 15, (10,), generator=generator).tolist()
    prompts = [tokens(length) for length in (4, 9, 1, 6, 2) for _ in range(2)]
    prompts[1::2] = prompts[::2]
    rollouts = [Rollout(prompt, tokens(length), True, []) for prompt, length in zip(prompts, lengths, strict=True)]
    fields = random_fields(lengths, seed=3)
    fields["mask"][2] = False  # a truncated response that is left out of the loss
    fields |= {name: mean + 0.1 * fields[name] for name, mean in MEANS.items()}
    fields |= {"rollout_weights": fields["entropy"].abs(), "future_log_probs": None}
    return Batch(rollouts, TokenBatch(**{k: x.to(device()) if isinstance(x, Tensor) else x for k, x in fields.items()}))
