"""The effect of a step on each token of a few samples, for `policygrain inspect`."""

from __future__ import annotations

from typing import Any

import torch

from ..objective import Method
from ..results.layout import RunFolder
from ..results.schema import TokenSample, TokenView, write_record
from ..study.schema import Training
from .policy import ScoredPolicy
from .ranks import on_rank_0
from .rollouts import Rollouts
from .update import TrainingBatch

GROUPS = 2  # prompts of the batch that are saved with all their responses


def save_token_view(
    run: RunFolder,
    step: int,
    rollouts: Rollouts,
    batch: TrainingBatch,
    policy: ScoredPolicy,
    method: Method,
    settings: Training,
) -> None:
    """Write the first groups of a batch with their log-probabilities after the step's updates."""
    assert batch.scored_entropy is not None
    rows = torch.arange(min(GROUPS * settings.group, len(batch.scored_entropy)))
    part = batch.rows(rows)
    now = policy.score(part.sequences, settings)
    decode = policy.tokenizer.decode
    old_entropy = batch.scored_entropy[rows, : now.entropy.shape[1]]
    after = {"log_probs": now.log_probs, "entropy": now.entropy, "future_log_probs": now.future}
    tokens = part.tokens.replace(**after, old_entropy=old_entropy, step=None)
    columns = {
        "log_prob_old": tokens.old_log_probs,
        "log_prob": tokens.log_probs,
        "entropy_change": now.entropy - old_entropy,
        "in_loss": tokens.mask,
        **method.view(tokens),
    }
    advantages = method.advantages(rollouts.rewards)
    samples = []
    for row in rows.tolist():
        prompt, place = divmod(row, settings.group)
        response = rollouts.responses[prompt][place]
        length = len(response.ids)
        samples.append(
            TokenSample(
                prompt=decode(rollouts.prompts[prompt]),
                reward=rollouts.rewards[prompt, place].item(),
                correct=bool(rollouts.correct[prompt, place]),
                advantage=advantages[prompt, place].item(),
                tokens=[decode([token]) for token in response.ids],
                **{name: _rounded(values[row, :length]) for name, values in columns.items()},
            )
        )
    on_rank_0(lambda: write_record(run.tokens(step), TokenView(step=step, method=method.name, samples=samples)))


def _rounded(values: torch.Tensor) -> list[Any]:
    return values.tolist() if values.dtype == torch.bool else [round(v, 6) for v in values.tolist()]
