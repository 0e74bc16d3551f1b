"""The policy that is measured: an initial model that the reference trained for some steps, and pools of rollouts.

All steps use the functions of training (`Collector`, `make_batch`, `minibatches`, `update`), so that every model and
engine of training can be measured. The policy is trained in one process and never sharded.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from policygrain.clock import Clock
from policygrain.data.problem import Problem
from policygrain.errors import UserError
from policygrain.hub import pinned
from policygrain.objective import Method, Sampler
from policygrain.objective.batch import TokenBatch
from policygrain.paths import DataFolder
from policygrain.provenance import seed_of
from policygrain.study.runs import Arm
from policygrain.train.batch import Batch, check_mismatch, make_batch, minibatches
from policygrain.train.loop import open_collector
from policygrain.train.policy import Policy, open_policy, update
from policygrain.train.rollouts import Collector, PromptStream

if TYPE_CHECKING:
    from policygrain.study import Study


class Saved(NamedTuple):
    """A copy of the state that updates change: trained weights and optimizer state."""

    weights: list[Tensor]
    optimizer: dict[str, Any]


class Pool(NamedTuple):
    """A batch of rollouts of one policy, and their rewards, [prompts, group]."""

    batch: Batch
    rewards: Tensor

    def rows(self, prompts: range) -> Tensor:
        """The rows of the batch that belong to these prompts."""
        group = self.rewards.shape[1]
        return torch.arange(prompts.start * group, prompts.stop * group)


@dataclass
class MeasuredPolicy:
    """A policy with its optimizer, and the collector and problems of a study. Sampling seeds are keyed by ``seed``.

    ``steps`` is the number of training steps made so far. Both instruments use the same keys, so estimators and rounds
    of the same initial model and stage measure the same policy.
    """

    policy: Policy
    collector: Collector
    reference: Method
    validation_problems: list[Problem]
    seed: int
    steps: int = 0

    def __post_init__(self) -> None:
        self.settings, self.train_problems = self.collector.settings, self.collector.stream.problems
        self._stream = PromptStream(self.train_problems, seed_of("instruments", self.seed, "prompts"))
        self._position = self._updates = 0

    @property
    def parameters(self) -> list[Tensor]:
        """The trained weights, in the model's order."""
        return [p for p in self.policy.model.parameters() if p.requires_grad]

    def train_until(self, steps: int) -> None:
        """Train by the reference method until ``steps`` steps are made, as a run of the study does."""
        for step in range(self.steps, steps):
            torch.manual_seed(seed_of("instruments", self.seed, "step", step))
            collector = self._collector(self._stream, seed_of("instruments", self.seed), self.settings.prompts_per_step)
            batch = self._batch(collector, self._position)
            self._position += self.settings.prompts_per_step
            sizes = self.settings.prompts_per_step, self.settings.group, self.settings.updates_per_batch
            seed = seed_of("instruments", self.seed, "minibatches", step)
            for rows in minibatches(*sizes, seed, self.settings.epochs):
                self._updates += 1
                self.policy.warm_up_rate(self._updates / max(1, self.settings.warmup_updates))
                self.update(batch.rows(rows), self.reference)
            self.steps = step + 1

    def update(self, batch: Batch, chosen: Method) -> dict[str, float]:
        """One optimizer step by ``chosen``; its metrics. UserError, which names the method, as in training."""
        try:
            return update(self.policy, batch, chosen, self.settings)
        except UserError as error:
            raise UserError(f"{chosen.name}: {error}") from error

    def pool(self, prompts: int, *key: object, needs: frozenset[str] = frozenset()) -> Pool:
        """Rollouts of the current policy for ``prompts`` prompts, keyed by ``key``; advantages are the reference's.

        ``needs``: what losses will read beyond the log-probabilities of this policy (`groups`, `reference`).
        """
        seed = seed_of("instruments", self.seed, *key)
        stream = PromptStream(self.train_problems, seed_of("prompts", seed))
        batch = self._batch(self._collector(stream, seed, prompts), 0)
        rollouts, tokens = batch.rollouts, batch.tokens
        if "groups" in needs:
            numbers = torch.arange(prompts, device=tokens.mask.device).repeat_interleave(self.settings.group)
            tokens = tokens.replace(groups=numbers)
        if "reference" in needs and tokens.ref_log_probs is None:
            scores = self.policy.score_reference(rollouts, self.settings)
            assert scores is not None
            tokens = tokens.replace(ref_log_probs=scores.log_probs)
        rewards = torch.tensor([rollout.reward for rollout in rollouts]).view(prompts, -1)
        return Pool(Batch(rollouts, tokens), rewards)

    def _batch(self, collector: Collector, position: int) -> Batch:
        rollouts, _ = collector.collect(self.policy.model, position, Clock())
        batch, metrics = make_batch(rollouts, self.policy, self.reference, self.settings)
        check_mismatch(metrics, self.policy.model, self.settings.max_mismatch)
        return batch

    def validate(self, samples: int) -> float:
        """Accuracy of ``samples`` responses per validation problem, with the same sampling seeds in every call."""
        problems = [problem for problem in self.validation_problems for _ in range(samples)]
        seeds = (
            seed_of("instruments", self.seed, "validation", number // samples, number % samples)
            for number in range(len(problems))
        )
        _, outcomes = self.collector.answers(problems, seeds, self.policy.model)
        return sum(o == "correct" for o in outcomes) / len(outcomes)

    def save(self) -> Saved:
        """A copy of weights and optimizer state."""
        optimizer = copy.deepcopy(self.policy.optimizer.state_dict())
        return Saved([p.detach().clone() for p in self.parameters], optimizer)

    def restore(self, saved: Saved) -> None:
        """Set weights and optimizer state to a copy that `save` made."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, saved.weights, strict=True):
                parameter.copy_(value)
        # The optimizer keeps the tensors that it loads and would change those of the copy.
        self.policy.optimizer.load_state_dict(copy.deepcopy(saved.optimizer))

    def _collector(self, stream: PromptStream, seed: int, prompts: int) -> Collector:
        settings = self.settings.model_copy(update={"prompts_per_step": prompts})
        changes: dict[str, Any] = {"stream": stream, "sampler": Sampler(), "settings": settings, "seed": seed}
        return dataclasses.replace(self.collector, all_log_probs=True, **changes)


# Measured policies are trained in float32, with the trainer's own log-probabilities.
PLAIN: dict[str, Any] = {"compute": "float32", "old_log_probs": "trainer"}


@contextmanager
def open_measured_policy(
    study: Study, reference: str, seed: int, start: str, data: DataFolder
) -> Iterator[MeasuredPolicy]:
    """Context with the initial model in ``start`` as a policy that ``reference`` trains, before its first step."""
    study = study.model_copy(update={"training": study.training.model_copy(update=PLAIN)})
    torch.set_num_threads(study.training.threads)
    chosen = plain(study.method(reference))
    policy = open_policy(start, pinned(study.model), chosen, study.training, seed, fused=False)
    with open_collector(study, Arm.of(study, reference), seed, policy, start, data) as (collector, validation):
        yield MeasuredPolicy(policy, collector, chosen, validation, seed)


def plain(chosen: Method) -> Method:
    """The method without its sampler: all methods are measured on the same rollouts."""
    return dataclasses.replace(chosen, sampler=Sampler())


def all_needs(methods: Sequence[Method]) -> frozenset[str]:
    """The inputs that at least one of the methods needs. Imports custom functions."""
    return frozenset[str]().union(*(m.needs for m in methods))


def with_advantages(batch: Batch, rewards: Tensor, chosen: Method) -> TokenBatch:
    """The tokens of ``batch`` with the method's own advantages of ``rewards`` [prompts, group]."""
    advantages = chosen.advantage(rewards).flatten()
    return batch.tokens.replace(advantages=advantages.to(batch.tokens.mask.device))
