"""What a step did to each token of a few samples: kept for `policygrain inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..files import atomic_json
from ..methods import Method
from ..study.schema import Training
from .policy import Policy
from .ranks import on_rank_0
from .rollouts import Rollouts
from .update import TrainingBatch, score_sequences

GROUPS = 2  # prompts of the batch that are kept, with all their responses


def keep_tokens(
    run_dir: Path,
    step: int,
    rollouts: Rollouts,
    batch: TrainingBatch,
    policy: Policy,
    method: Method,
    settings: Training,
) -> None:
    """Write `tokens/stepNNNNN.json`: the first groups of a batch as the policy, after the step's updates, sees them."""
    rows = torch.arange(min(GROUPS, len(rollouts.prompts)) * settings.group)
    part = batch.rows(rows)
    now = score_sequences(policy.model, part.sequences, settings, policy.heads)
    decode = policy.tokenizer.decode
    tokens = part.tokens.replace(log_probs=now.log_probs, entropy=now.entropy, future_log_probs=now.future, step=None)
    assert tokens.old_entropy is not None
    columns = {
        "log_prob_old": tokens.old_log_probs,
        "log_prob": tokens.log_probs,
        "entropy_change": now.entropy - tokens.old_entropy,
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
            {
                "prompt": decode(rollouts.prompts[prompt]),
                "reward": rollouts.rewards[prompt, place].item(),
                "correct": bool(rollouts.correct[prompt, place]),
                "advantage": advantages[prompt, place].item(),
                "tokens": [decode([token]) for token in response.ids],
                **{name: _rounded(values[row, :length]) for name, values in columns.items()},
            }
        )
    record = {"step": step, "method": method.name, "samples": samples}
    on_rank_0(lambda: atomic_json(run_dir / "tokens" / f"step{step:05d}.json", record))


def _rounded(values: torch.Tensor) -> list[Any]:
    return values.tolist() if values.dtype == torch.bool else [round(v, 6) for v in values.tolist()]
