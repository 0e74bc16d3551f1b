"""Rollouts as tensors: advantages, log-probabilities of the old and the reference policy, and minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import UserError
from ..model.attention import to_device
from ..model.device import compute_dtype
from ..model.engine import Rollout
from ..model.scoring import TokenScores
from ..model.small import LanguageModel
from ..objective import Method
from ..objective.batch import StepTotals, TokenBatch
from ..objective.loss import effective_sample_share, log_weights, rollout_weights
from ..objective.terms import k3
from ..provenance import seed_of
from ..study.schema import Training

if TYPE_CHECKING:
    from .policy import Policy

# The largest mean difference, in nats per token, between two correct implementations: 1e-5 was measured in float32 and
# 0.01 in bfloat16; an engine that missed one update differs by 0.005, one with half of the weights by about 1.
ROUNDING = {torch.float32: 0.01, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class Batch:
    """Rollouts and the inputs of the objective, row by row, which do not change during the updates."""

    rollouts: list[Rollout]
    tokens: TokenBatch  # on the compute device, with log-probabilities and entropies of the old policy
    current: tuple[int, ...] = ()  # rows that their update scores, because the old policy is still the current one

    def rows(self, index: Iterable[int]) -> Batch:
        """The rows ``index`` of the batch, as wide as the longest response."""
        rows = [int(row) for row in index]
        rollouts = [self.rollouts[row] for row in rows]
        (at,) = to_device([torch.tensor(rows)], self.tokens.mask.device)
        unscored = set(self.current)
        current = tuple(place for place, row in enumerate(rows) if row in unscored)
        return Batch(rollouts, self.tokens.rows(at, width=width_of(rollouts)), current)

    def under(self, scores: TokenScores, step: StepTotals) -> TokenBatch:
        """The tokens as a part of an optimizer step, with scores under the current policy."""
        now = {"log_probs": scores.log_probs, "entropy": scores.entropy, "future_log_probs": scores.future}
        if self.current:
            now |= {f"old_{name}": value.detach() for name, value in now.items() if value is not None}
        return self.tokens.replace(**now, step=step)

    def to(self, device: torch.device) -> Batch:
        moved = {name: x.to(device) for name, x in vars(self.tokens).items() if isinstance(x, Tensor)}
        return replace(self, tokens=self.tokens.replace(**moved))


def width_of(rollouts: Iterable[Rollout]) -> int:
    return max([1, *(len(rollout.ids) for rollout in rollouts)])


def make_batch(
    rollouts: list[Rollout],
    policy: Policy,
    method: Method,
    settings: Training,
    age: int | None = None,
    current: Sequence[int] = (),
) -> tuple[Batch, dict[str, float]]:
    """The batch of ``rollouts``, which are in groups of ``settings.group``, and metrics of them.

    ``age``: number of steps between sampling and the updates; None: methods may not read it. ``current``: rows that
    their update scores; where no others can be compared with the engine, they are scored here, too.
    """
    needs, place, every = method.needs, policy.model.device, len(rollouts)
    by_engine, number = settings.old_log_probs == "engine", torch.arange(every) // settings.group  # of the group
    quarter = settings.group * math.ceil(every / settings.group / 4)
    scored = torch.ones(every, dtype=torch.bool)  # rows that the trainer scores here
    # Those that the engine has scored are compared with it; methods may read more of the old policy than it records.
    if by_engine and not (method.custom_functions or method.penalties or method.n_mtp_heads):
        scored[quarter:] = False
    elif current:
        scored[[*current]], by_both = False, number % 4 == 0  # of the engine's, without dynamic sampling
        if not (scored & by_both).any():
            scored |= by_both
    lengths = torch.tensor([len(r.ids) for r in rollouts])
    mask = torch.arange(width_of(rollouts)) < lengths.unsqueeze(1)
    recorded = torch.full(mask.shape, math.nan)
    for row, rollout in enumerate(rollouts):
        recorded[row, : len(rollout.log_probs)] = torch.tensor(rollout.log_probs)
    if by_engine and recorded[mask].isnan().any():
        raise UserError("the engine could not score some of its tokens; set training.old_log_probs: trainer.")
    finished = torch.tensor([r.finished for r in rollouts])
    rewards = torch.tensor([r.reward for r in rollouts])
    advantages = method.advantage(rewards.view(-1, settings.group)).flatten()
    in_loss = mask & finished.unsqueeze(1) if method.sampler.mask_truncated else mask
    mask, in_loss, on_device, engine = to_device((mask, in_loss, advantages, recorded), place)

    def scores(by: Callable[..., TokenScores | None], rows: Tensor) -> TokenScores | None:
        found = by([rollouts[row] for row in rows], settings)
        if found is None or len(rows) == every:
            return found
        whole = {name: x.new_full(mask.shape, math.nan) for name, x in found._asdict().items() if x is not None}
        for name, values in whole.items():
            values[rows, : found.log_probs.shape[1]] = getattr(found, name)
        return TokenScores(**whole)

    rows = scored.nonzero().squeeze(1)
    old = scores(policy.score, rows)
    assert old is not None
    # If only the metric `kl_initial` reads the reference policy, a quarter of the groups is enough.
    compared = torch.arange(every) if "reference" in needs else rows[:quarter]
    reference = scores(policy.score_reference, compared)
    log_probs = torch.where(mask, engine, 0.0) if by_engine else old.log_probs
    entropy = None if by_engine and len(rows) < every else old.entropy
    tokens = TokenBatch(
        log_probs=log_probs,
        old_log_probs=log_probs,
        advantages=on_device,
        mask=in_loss,
        entropy=entropy,
        old_entropy=entropy,
        ref_log_probs=reference.log_probs if reference is not None and "reference" in needs else None,
        # With the anchor `loglinear` weights change with each update.
        rollout_weights=rollout_weights(log_probs, engine, in_loss, method.sampler)
        if method.sampler.corrects and method.anchor != "loglinear"
        else None,
        future_log_probs=old.future,
        old_future_log_probs=old.future,
        groups=number.to(place) if "groups" in needs else None,
        rollout_log_probs=engine if all(len(r.log_probs) == len(r.ids) for r in rollouts) else None,
        staleness=torch.full((every,), age, device=place) if age is not None and "staleness" in needs else None,
        max_length=settings.max_tokens,
    )
    metrics = {
        "reward_mean": rewards.mean().item(),
        "reward_std": rewards.std().item() if every > 1 else 0.0,
        "accuracy": sum(r.correct for r in rollouts) / every,
        "advantage_std": advantages.std().item() if every > 1 else 0.0,
        "response_length_mean": lengths.float().mean().item(),
        "response_length_max": float(lengths.max()),
        "truncated_share": 1 - finished.float().mean().item(),
    }
    with_reference = torch.zeros(every, dtype=torch.bool).index_fill(0, compared, value=True)
    left = torch.zeros(every, dtype=torch.bool).index_fill(0, torch.tensor(current, dtype=torch.long), value=True)
    rows_of = scored, scored & with_reference, scored & ~left
    metrics |= _of_policies(old, reference, engine, *(mask & x.to(place).unsqueeze(1) for x in rows_of))
    metrics |= _of_correction(method, tokens, engine)
    if current:
        metrics["current_share"] = float(lengths[left].sum() / lengths.sum())
    return Batch(rollouts, tokens, tuple(current)), metrics


def reads_engine(method: Method, settings: Training) -> bool:
    """Whether training reads the engine's log-probabilities of all responses, not just their difference in a metric."""
    of_method = method.sampler.corrects or method.anchor != "old"
    # A custom function may read anything.
    return of_method or bool(method.custom_functions) or settings.old_log_probs == "engine"


def scored_by_update(method: Method, settings: Training) -> bool:
    """Whether the update of a step's first minibatch scores it under the old policy, which is still the current one."""
    reads_more = reads_engine(method, settings) or not method.needs.isdisjoint(("groups", "step_log_probs"))
    # A second pass over the batch reads the scores of all rows, and the metrics are of all tokens.
    return not (settings.off_policy_steps or settings.epochs > 1 or reads_more or method.sampler.mask_truncated)


def _of_policies(
    old: TokenScores, reference: TokenScores | None, engine: Tensor, scored: Tensor, compared: Tensor, alone: Tensor
) -> dict[str, float]:
    """Metrics of the old policy on tokens that it ``scored``: ``compared`` by the reference, ``alone`` by no update."""
    known = scored & ~engine.isnan()
    mismatch, count = torch.where(known, old.log_probs - engine, 0.0), known.sum().clamp(min=1)
    found = {
        "entropy_old": torch.where(alone, old.entropy, 0.0).sum() / alone.sum().clamp(min=1),
        "mismatch_mean": mismatch.abs().sum() / count,
        "mismatch_max": mismatch.abs().max(),
        "mismatch_kl": torch.where(known, k3(engine, old.log_probs), 0.0).sum() / count,
    }
    if reference is not None:
        divergence = torch.where(compared, k3(old.log_probs, reference.log_probs), 0.0)
        found["kl_initial"] = divergence.sum() / compared.sum().clamp(min=1)
    numbers = torch.stack([*found.values()]).tolist()  # one transfer from the device for all of them
    return dict(zip(found, numbers, strict=True))


def _of_correction(method: Method, tokens: TokenBatch, engine: Tensor) -> dict[str, float]:
    """Metrics of the importance weights between engine and trainer; empty if there are no weights."""
    weights, mask = tokens.rollout_weights, tokens.mask
    if weights is None:
        return {}
    before = log_weights(tokens.old_log_probs, engine, mask, method.sampler.correction_grain)[mask].double().exp()
    return {
        "correction_weight_mean": before.mean().item() if len(before) else 1.0,
        "correction_weight_max": before.max().item() if len(before) else 1.0,
        "correction_effective_share": effective_sample_share(weights, mask),
        "correction_dropped_share": ((weights == 0) & mask).sum().item() / max(1, int(mask.sum())),
    }


def check_mismatch(metrics: dict[str, float], model: LanguageModel, bound: float | None) -> None:
    """UserError if engine and ``model`` differ by more than ``bound`` nats per token; None: than rounding explains."""
    bound = ROUNDING[compute_dtype(model)] if bound is None else bound
    if not metrics["mismatch_mean"] <= bound:  # NaN is no small difference
        raise UserError(
            f"trainer and engine differ by {metrics['mismatch_mean']:.3g} nats on the mean sampled token, more than "
            f"{bound:g} (training.max_mismatch). The engine has stale weights or prefixes, or computes differently: in "
            "another precision, with another rope, quantized."
        )


def minibatches(prompts: int, group: int, count: int, seed: int, epochs: int = 1) -> list[Tensor]:
    """Row indices of each optimizer step: ``count`` in each of ``epochs`` passes over a batch; none is empty.

    In each pass prompts are shuffled anew. Their responses stay together where possible: their advantages sum to zero.
    """
    generator = torch.Generator().manual_seed(seed)
    steps: list[Tensor] = []
    for _ in range(epochs):
        order = torch.randperm(prompts, generator=generator)
        rows = (order.unsqueeze(1) * group + torch.arange(group)).flatten()
        steps += rows.tensor_split(min(count, len(rows)))
    return steps


def minibatches_of_step(settings: Training, prompts: int, group: int, seed: int, step: int) -> list[Tensor]:
    """The minibatches of a step of a run with this seed: the same for all methods and trainers."""
    return minibatches(prompts, group, settings.updates_per_batch, seed_of("minibatches", seed, step), settings.epochs)
