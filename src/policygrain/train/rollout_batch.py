"""A batch drawn: sampled from the policy of the moment, judged, and read by that same policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..clock import Clock
from ..methods import Method
from ..model.sequences import Sequences
from ..model.sharding import compute_dtype
from ..objective.batch import TokenBatch
from ..rollout.engine import Response
from .policy import Policy
from .rollouts import Collector, Rollouts
from .update import TrainingBatch, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class RolloutBatch(NamedTuple):
    """What a step trains on, whenever that will be; ``batch`` is None where there is nothing to learn from."""

    rollouts: Rollouts
    batch: TrainingBatch | None
    metrics: dict[str, float]

    def to(self, device: torch.device) -> RolloutBatch:
        """The same, on another device."""
        if self.batch is None:
            return self
        tokens = self.batch.tokens
        moved = {k: v.to(device) for k, v in vars(tokens).items() if isinstance(v, torch.Tensor)}
        sequences = Sequences(*(x.to(device) for x in self.batch.sequences))
        return RolloutBatch(self.rollouts, TrainingBatch(sequences, tokens.replace(**moved)), self.metrics)


# Nats on the mean token that two right implementations differ by, at most: 1e-5 was seen in float32 and 0.01 in
# bfloat16, 0.005 after a single step that the engine missed, and about 1 with half of the weights.
ROUNDING = {torch.float32: 0.01, torch.float16: 0.02, torch.bfloat16: 0.1}
# A checkpoint may hold batches that wait; it is read without leave to make anything but these and tensors.
SAVED_TYPES: list[Any] = [RolloutBatch, Rollouts, Response, TrainingBatch, Sequences, TokenBatch]


def draw(collector: Collector, policy: Policy, method: Method, clock: Clock) -> RolloutBatch:
    """Weights into the engine, a batch out of it; every response's advantage over its group, and its log-probabilities
    under the policy that sampled it, which ratios are to.
    """
    with clock("synchronise"):
        collector.engine.load_weights(policy.model)
    rollouts = collector.collect(clock)
    collector.engine.sleep()
    if not rollouts.prompts:
        return RolloutBatch(rollouts, None, {})
    with clock("log_probs"):
        return RolloutBatch(rollouts, *prepare(rollouts, policy, method, collector.settings))


def disagreement(drawn: RolloutBatch, model: PreTrainedModel, bound: float | None) -> str | None:
    """Why not to train on a batch: its sampler was not ``model``, going by what both say of the same tokens. None where
    they agree to ``bound`` nats (None: to what rounding comes to) on average.
    """
    bound = ROUNDING[compute_dtype(model)] if bound is None else bound
    found = drawn.metrics.get("mismatch_mean", 0.0)
    if found <= bound:
        return None
    return (
        f"trainer and engine disagree by {found:.3g} nats on the mean sampled token, more than {bound:g} "
        "(training.max_mismatch). Either the engine samples from stale weights or a stale prefix cache, or it computes "
        "otherwise: in another precision, with another rope, quantized."
    )
