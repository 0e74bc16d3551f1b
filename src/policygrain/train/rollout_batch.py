"""A rollout batch: responses of the current policy, graded, with advantages and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..clock import Clock
from ..errors import UserError
from ..model.precision import compute_dtype
from ..model.sequences import Sequences
from ..model.weights import rounded_copy
from ..objective import Method
from ..objective.batch import TokenBatch
from ..rollout.engine import Response
from ..study.schema import Training
from .policy import ScoredPolicy
from .rollouts import Collector, Rollouts
from .update import TrainingBatch, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EngineMismatch(UserError):
    """The log-probabilities of engine and trainer differ too much: the responses are not those of the policy."""


class RolloutBatch(NamedTuple):
    """A batch that a step trains on; ``batch`` is None if dynamic sampling has dropped all groups."""

    rollouts: Rollouts
    batch: TrainingBatch | None
    metrics: dict[str, float]

    def to(self, device: torch.device) -> RolloutBatch:
        """The same batch on another device."""
        if self.batch is None:
            return self
        tokens = self.batch.tokens
        moved = {k: v.to(device) for k, v in vars(tokens).items() if isinstance(v, torch.Tensor)}
        sequences = Sequences(*(x.to(device) for x in self.batch.sequences))
        entropy = None if self.batch.scored_entropy is None else self.batch.scored_entropy.to(device)
        return RolloutBatch(self.rollouts, TrainingBatch(sequences, tokens.replace(**moved), entropy), self.metrics)


# The largest mean difference, in nats per token, between two correct implementations: 1e-5 was measured in float32 and
# 0.01 in bfloat16; an engine that missed one update differs by 0.005, one with half of the weights by about 1.
ROUNDING = {torch.float32: 0.01, torch.float16: 0.02, torch.bfloat16: 0.1}
# The only types, besides tensors, that a checkpoint may contain.
SAVED_TYPES: list[Any] = [RolloutBatch, Rollouts, Response, TrainingBatch, Sequences, TokenBatch]


def collect_batches(
    collector: Collector,
    policy: ScoredPolicy,
    method: Method,
    clock: Clock,
    position: int = 0,
    ages: Sequence[int | None] = (None,),
) -> list[RolloutBatch]:
    """Sample a batch for each of ``ages`` with the policy's current weights, with advantages and old log-probabilities.

    Their prompts are those of the stream from ``position`` on, and the updates of each come its age in steps later.
    With `training.sampler_bits` the engine has rounded weights; old log-probabilities are still the trainer's.
    EngineMismatch if engine and trainer differ too much.
    """
    settings = collector.settings
    bits = settings.sampler_bits
    with clock("synchronise"):
        collector.engine.load_weights(policy.model if bits is None else rounded_copy(policy.model, bits))
    if len(ages) > 1:
        collector.sample_ahead(clock, range(position, position + len(ages) * settings.prompts_per_step))
    sampled: list[Rollouts] = []
    for _ in ages:
        sampled.append(collector.collect(clock, position))
        position += sampled[-1].sampled
    collector.engine.sleep()
    return [
        _scored(rollouts, policy, method, clock, settings, age) for rollouts, age in zip(sampled, ages, strict=True)
    ]


def _scored(
    rollouts: Rollouts, policy: ScoredPolicy, method: Method, clock: Clock, settings: Training, age: int | None
) -> RolloutBatch:
    if not rollouts.prompts:
        return RolloutBatch(rollouts, None, {})
    with clock("log_probs"):
        batch, metrics = prepare(rollouts, policy, method, settings, age)
    bound = settings.max_mismatch
    if settings.sampler_bits is None or bound is not None:  # rounded weights differ from the trained policy on purpose
        _check_mismatch(metrics, policy.model, bound)
    return RolloutBatch(rollouts, batch, metrics)


def _check_mismatch(metrics: dict[str, float], model: PreTrainedModel, bound: float | None) -> None:
    """EngineMismatch if the log-probabilities of engine and ``model`` differ too much.

    ``bound``: nats per token on average; None: the largest difference that rounding explains (`ROUNDING`).
    """
    bound = ROUNDING[compute_dtype(model)] if bound is None else bound
    mismatch = metrics.get("mismatch_mean", 0.0)
    if mismatch <= bound:
        return
    raise EngineMismatch(
        f"trainer and engine differ by {mismatch:.3g} nats on the mean sampled token, more than {bound:g} "
        "(training.max_mismatch). The engine has stale weights or a stale prefix cache, or it computes differently: in "
        "another precision, with another rope, quantized."
    )
