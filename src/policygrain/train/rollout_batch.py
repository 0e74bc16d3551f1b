"""A rollout batch: responses of the current policy, graded, with advantages and log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..clock import Clock
from ..errors import UserError
from ..model.attention import to_device
from ..model.engine import Response
from ..model.logprobs import TokenScores
from ..model.precision import compute_dtype
from ..model.sequences import Sequences, pack, segment_ids
from ..objective import Method
from ..objective.batch import TokenBatch
from ..objective.correction import effective_sample_share, log_weights, rollout_weights
from ..objective.divergence import k3
from ..study.schema import Training
from .policy import ScoredPolicy
from .rollouts import Collector, Rollouts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The largest mean difference, in nats per token, at which the engine's log-probabilities replace the trainer's.
AGREEMENT = 1e-4


class EngineMismatch(UserError):
    """The log-probabilities of engine and trainer differ too much: the responses are not those of the policy."""


@dataclass(frozen=True)
class TrainingBatch:
    """The inputs of the updates of one batch, which do not change during the updates.

    ``sequences`` are the padded token ids, on the host; ``tokens``, on the compute device, the inputs of the objective,
    with ``log_probs`` and ``entropy`` of the old policy. Rows are in the order of the rollouts.
    """

    sequences: Sequences
    tokens: TokenBatch

    def rows(self, index: Tensor) -> TrainingBatch:
        """The rows ``index`` of the batch."""
        sequences = self.sequences.rows(index)
        return TrainingBatch(sequences, self.tokens.rows(index, width=sequences.mask.shape[1]))


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
        batch = TrainingBatch(self.batch.sequences, tokens.replace(**moved))
        return RolloutBatch(self.rollouts, batch, self.metrics)


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

    An age is the number of steps between sampling and the updates; None: methods may not read it. Prompts are those of
    the stream from ``position`` on. Returns a batch per age, in order.
    EngineMismatch if engine and trainer differ too much.
    """
    settings = collector.settings
    with clock("synchronise"):
        collector.engine.load_weights(policy.model)
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
    _check_mismatch(metrics, policy.model, settings.max_mismatch)
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


def prepare(
    rollouts: Rollouts, policy: ScoredPolicy, method: Method, settings: Training, age: int | None = None
) -> tuple[TrainingBatch, dict[str, float]]:
    """Advantages, old and reference log-probabilities of a batch, and metrics of its responses.

    ``age``: number of steps between sampling and the updates; None: methods may not read it.
    """
    group, needs = rollouts.rewards.shape[1], method.needs
    responses = [r for row in rollouts.responses for r in row]
    prompts = [p for p in rollouts.prompts for _ in range(group)]
    sequences = pack(prompts, [r.ids for r in responses], policy.tokenizer.pad_token_id)
    place = policy.model.device
    finished = torch.tensor([r.finished for r in responses])
    in_loss = sequences.mask & finished.unsqueeze(1) if method.sampler.mask_truncated else sequences.mask
    by_response = method.advantage(rollouts.rewards).flatten()
    mask, advantages = to_device((in_loss, by_response), place)
    scores = _score(responses, sequences, policy, method, settings)
    groups = torch.arange(len(rollouts.prompts), device=place).repeat_interleave(group)
    entropy = scores.old.entropy if scores.scored == slice(None) else None
    segments = segment_ids(sequences, policy.tokenizer, settings.segment_ends) if "segments" in needs else None
    tokens = TokenBatch(
        log_probs=scores.log_probs,
        old_log_probs=scores.log_probs,
        advantages=advantages,
        mask=mask,
        entropy=entropy,
        old_entropy=entropy,
        ref_log_probs=scores.reference if "reference" in needs else None,
        rollout_weights=_correction(method, scores.log_probs, scores.engine, mask),
        future_log_probs=scores.old.future,
        old_future_log_probs=scores.old.future,
        groups=groups if "groups" in needs else None,
        segments=segments.to(place) if segments is not None else None,
        rollout_log_probs=scores.engine if all(len(r.log_probs) == len(r.ids) for r in responses) else None,
        staleness=torch.full((len(mask),), age, device=place) if age is not None and "staleness" in needs else None,
        max_length=settings.max_tokens,
    )
    metrics = _metrics(rollouts, by_response, sequences, finished, scores)
    metrics |= _of_correction(method, tokens, scores.engine)
    return TrainingBatch(sequences, tokens), metrics


class _Scores(NamedTuple):
    """Log-probabilities of a batch, [batch, tokens]."""

    log_probs: Tensor  # of the old policy
    old: TokenScores  # of the old policy, computed by the trainer, only of the rows ``scored``
    scored: slice
    engine: Tensor  # recorded by the engine; NaN where they were not asked for
    reference: Tensor | None  # of the reference policy, only of the rows ``compared``
    compared: slice


def _score(
    responses: Sequence[Response], sequences: Sequences, policy: ScoredPolicy, method: Method, settings: Training
) -> _Scores:
    """Log-probabilities under the old and the reference policy, of as few rows as are needed.

    If nothing else of the old policy is needed, and the engine's log-probabilities agree with the trainer's on a
    quarter of the groups, the engine's are used for all groups and the other groups are not scored.
    """
    whole = slice(None)
    recorded = torch.full(sequences.mask.shape, math.nan)
    for row, response in enumerate(responses):
        recorded[row, : len(response.log_probs)] = torch.tensor(response.log_probs)
    mask, engine = to_device((sequences.mask, recorded), policy.model.device)
    some = slice(0, math.ceil(len(responses) // settings.group / 4) * settings.group)
    scored = some if settings.old_log_probs == "engine" and _needs_log_probs_alone(method) else whole
    old = _score_rows(policy, sequences, settings, scored)
    if scored == some:
        mismatch = torch.where(mask[scored], old.log_probs - engine[scored], 0.0)
        if float(mismatch.abs().sum() / mask[scored].sum()) > AGREEMENT:
            scored, old = whole, _score_rows(policy, sequences, settings, whole)
    log_probs = old.log_probs if scored == whole else torch.where(mask, engine, 0.0)
    # If only the metric `kl_initial` needs the reference policy, a quarter of the batch is enough.
    compared = whole if "reference" in method.needs else some
    reference = policy.score_reference(sequences.rows(compared), settings)
    return _Scores(log_probs, old, scored, engine, None if reference is None else reference.log_probs, compared)


def _metrics(
    rollouts: Rollouts,
    advantages: Tensor,
    sequences: Sequences,
    finished: Tensor,
    scores: _Scores,
) -> dict[str, float]:
    """Metrics of rewards, lengths, the old policy and its difference from the engine."""
    lengths = sequences.mask.sum(1).float()
    old, engine = scores.old, scores.engine[scores.scored]
    (mask,) = to_device([sequences.mask[scores.scored]], engine.device)
    known = mask & ~engine.isnan()
    mismatch = torch.where(known, old.log_probs - engine, 0.0)
    of_policy = {
        "entropy_old": torch.where(mask, old.entropy, 0.0).sum() / mask.sum(),
        "mismatch_mean": mismatch.abs().sum() / known.sum().clamp(min=1),
        "mismatch_max": mismatch.abs().max(),
        "mismatch_kl": torch.where(known, k3(engine, old.log_probs), 0.0).sum() / known.sum().clamp(min=1),
    }
    if scores.reference is not None:
        rows = scores.compared
        (mask,) = to_device([sequences.mask[rows]], engine.device)
        of_policy["kl_initial"] = _mean_kl(scores.log_probs[rows], scores.reference, mask)
    # One transfer from the device for all of them.
    numbers = torch.stack([*of_policy.values()]).tolist()
    return {
        "reward_mean": rollouts.rewards.mean().item(),
        "reward_std": rollouts.rewards.std().item() if rollouts.rewards.numel() > 1 else 0.0,
        "accuracy": rollouts.correct.mean().item(),
        "advantage_std": advantages.std().item() if advantages.numel() > 1 else 0.0,
        "response_length_mean": lengths.mean().item(),
        "response_length_max": lengths.max().item(),
        "truncated_share": 1 - finished.float().mean().item(),
        "groups_drawn": rollouts.sampled,
        "groups_dropped": rollouts.dropped,
        **dict(zip(of_policy, numbers, strict=True)),
    }


def _of_correction(method: Method, tokens: TokenBatch, engine: Tensor) -> dict[str, float]:
    """Metrics of the importance weights between engine and trainer; empty if there are no weights."""
    weights, mask = tokens.rollout_weights, tokens.mask
    if weights is None:
        return {}
    grain = method.sampler.correction_grain
    before = log_weights(tokens.old_log_probs, engine, mask, grain)[mask].double().exp()
    return {
        "correction_weight_mean": before.mean().item() if len(before) else 1.0,
        "correction_weight_max": before.max().item() if len(before) else 1.0,
        "correction_effective_share": effective_sample_share(weights, mask),
        "correction_dropped_share": ((weights == 0) & mask).sum().item() / max(1, int(mask.sum())),
    }


def _correction(method: Method, old_log_probs: Tensor, engine_log_probs: Tensor, mask: Tensor) -> Tensor | None:
    """Importance weights between engine and trainer, if the method asks for them. [batch, tokens]."""
    if not method.sampler.corrects or method.anchor == "loglinear":  # its weights change with each update
        return None
    return rollout_weights(old_log_probs, engine_log_probs, mask, method.sampler)


def reads_engine(method: Method, settings: Training) -> bool:
    """Whether training reads the engine's log-probabilities of all responses, not just their difference in a metric."""
    of_method = method.sampler.corrects or method.anchor != "old" or method.off_policy_bound is not None
    # A custom function may read anything.
    return of_method or bool(method.custom_functions) or settings.old_log_probs == "engine"


def _needs_log_probs_alone(method: Method) -> bool:
    """Whether a method reads only log-probabilities of the old policy, neither entropies nor prediction heads."""
    # A custom function may read anything.
    return not (method.custom_functions or method.penalties or method.n_mtp_heads or method.sampler.corrects)


def _score_rows(policy: ScoredPolicy, sequences: Sequences, settings: Training, rows: slice) -> TokenScores:
    """Scores of some rows under the policy, as wide as all rows. [rows, tokens]."""
    scores = policy.score(sequences.rows(rows), settings)
    width = sequences.mask.shape[1] - scores.log_probs.shape[1]

    def widened(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, width))

    future = None if scores.future is None else widened(scores.future)
    return TokenScores(widened(scores.log_probs), widened(scores.entropy), future, None)


def _mean_kl(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> Tensor:
    width = reference_log_probs.shape[1]
    estimate = torch.where(mask[:, :width], k3(log_probs[:, :width], reference_log_probs), 0.0)
    return estimate.sum() / mask.sum().clamp(min=1)
