"""A made-up training batch for the real `update`."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from policygrain.integrations.generated import random_fields
from policygrain.model.sequences import pack
from policygrain.objective.batch import TokenBatch
from policygrain.train.rollout_batch import TrainingBatch

from .device import PLACE

# About what an untrained model gives each token, so that ratios are not far from 1.
MEANS = {"log_probs": -3, "old_log_probs": -3, "ref_log_probs": -3, "rollout_log_probs": -3.1}
MEANS |= {"old_future_log_probs": -12, "old_entropy": 2, "entropy": 0}


def random_batch(left: int = 0, right: int = 0) -> TrainingBatch:
    """Ten responses to five prompts, with ``left`` more columns before prompts and ``right`` more after responses."""
    generator = torch.Generator().manual_seed(3)

    def tokens(length: int) -> list[int]:
        return torch.randint(3, 40, (length,), generator=generator).tolist()

    lengths = torch.randint(1, 15, (10,), generator=generator).tolist()
    prompts = [tokens(length) for length in (4, 9, 1, 6, 2) for _ in range(2)]
    prompts[1::2] = prompts[::2]
    sequences = pack(prompts, [tokens(length) for length in lengths], 0)
    before = {name: pad(getattr(sequences, name), (left, 0)) for name in ("prompts", "prompt_mask")}
    after = {name: pad(getattr(sequences, name), (0, right)) for name in ("ids", "mask")}
    fields = random_fields(lengths, seed=3)
    fields["mask"][2] = False  # a truncated response that is left out of the loss
    fields |= {name: mean + 0.1 * fields[name] for name, mean in MEANS.items()}
    fields |= {"rollout_weights": fields["entropy"].abs(), "future_log_probs": None}
    padded = {
        name: pad(x, (0, right), value=0 if x.dtype == torch.bool else 7)
        for name, x in fields.items()
        if isinstance(x, Tensor) and x.ndim == 2
    }
    placed = {name: x.to(PLACE) if isinstance(x, Tensor) else x for name, x in (fields | padded).items()}
    return TrainingBatch(sequences._replace(**before, **after), TokenBatch(**placed))
