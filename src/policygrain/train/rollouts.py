"""Sampling of rollouts: prompts, groups of responses, rewards, dynamic sampling."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..clock import Clock
from ..data.problem import Problem
from ..data.prompts import PromptRenderer
from ..grading import Grader, Outcome
from ..model.engine import Engine, Request, Response
from ..objective import Sampler
from ..provenance import seed_of
from ..study.schema import Training
from .ranks import map_over_ranks


class PromptStream:
    """An endless stream of training problems, shuffled by the seed in each epoch."""

    def __init__(self, problems: list[Problem], seed: int) -> None:
        self.problems, self.seed = problems, seed
        self._orders: dict[int, list[int]] = {}

    def at(self, positions: range) -> list[Problem]:
        """The problems at these positions of the stream."""
        size = len(self.problems)
        return [self.problems[self._order(position // size)[position % size]] for position in positions]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self.problems)))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            self._orders = {epoch: order}
        return self._orders[epoch]


def prompt_stream(problems: list[Problem], seed: int) -> PromptStream:
    """The prompts of a run with this seed."""
    return PromptStream(problems, seed_of("prompts", seed))


def response_seeds(seed: int, position: int, group: int) -> list[int]:
    """Sampling seeds of the responses to the prompt at ``position``: the same for all methods and trainers."""
    return [seed_of(seed, position, number) for number in range(group)]


@dataclass
class Rollouts:
    """A batch of responses in groups; tensors are [prompts, group], lists [prompts][group]."""

    prompts: list[list[int]]
    responses: list[list[Response]]
    rewards: Tensor
    correct: Tensor
    sampled: int  # prompts that were sampled for this batch
    dropped: int  # prompts left out: groups with equal rewards, and surplus groups
    sampled_accuracy: float  # of all sampled responses, dropped groups included
    tokens: int  # tokens that the policy sampled for this batch, dropped groups included


@dataclass(frozen=True)
class Collector:
    """Samples and grades batches of responses."""

    stream: PromptStream
    engine: Engine
    grader: Grader
    renderer: PromptRenderer
    sampler: Sampler
    settings: Training
    seed: int
    all_log_probs: bool = True  # of the engine; False: of every fourth group of a batch, for the mismatch alone
    # Prompt and responses by the prompt's position in the stream, from `sample_ahead` until a batch takes them.
    _waiting: dict[int, tuple[list[int], list[Response]]] = field(default_factory=dict, init=False, repr=False)

    def sample_ahead(self, clock: Clock, positions: range) -> None:
        """Sample groups for the prompts at these positions, of several batches of one policy, in one call."""
        problems, group = self.stream.at(positions), self.settings.group
        prompts = [self.renderer.ids(p.problem, bool(p.options.tests)) for p in problems]
        requests = [
            self._request(prompt, seed, self.all_log_probs or number % self.settings.prompts_per_step % 4 == 0)
            for number, (position, prompt) in enumerate(zip(positions, prompts, strict=True))
            for seed in response_seeds(self.seed, position, group)
        ]
        with clock("generate"):
            flat = map_over_ranks(self.engine.generate, requests)
        groups = [flat[i : i + group] for i in range(0, len(flat), group)]
        self._waiting.update(zip(positions, zip(prompts, groups, strict=True), strict=True))

    def answers(
        self, problems: Sequence[Problem], seeds: Iterable[int], model: Any
    ) -> tuple[list[Response], list[Outcome]]:
        """A response of ``model`` to each problem, sampled with the seed at its place, and its outcome."""
        prompts = (self.renderer.ids(p.problem, bool(p.options.tests)) for p in problems)
        requests = [self._request(prompt, seed, False) for prompt, seed in zip(prompts, seeds, strict=True)]
        self.engine.load_weights(model)
        responses = map_over_ranks(self.engine.generate, requests)
        self.engine.sleep()
        return responses, grade_responses(problems, responses, self.grader, self.renderer.tokenizer)

    def _request(self, prompt: list[int], seed: int, log_probs: bool) -> Request:
        return Request(prompt, seed, self.settings.max_tokens, self.settings.temperature, log_probs=log_probs)

    def collect(self, clock: Clock, position: int = 0) -> Rollouts:
        """A batch of ``prompts_per_step`` groups; fewer only when dynamic sampling ends at ``max_batches``.

        Its prompts are those of the stream from ``position`` on, `Rollouts.sampled` of them.
        """
        wanted = self.settings.prompts_per_step
        budget = wanted * (self.sampler.max_batches if self.sampler.dynamic else 1)
        parts: list[Rollouts] = []
        sampled = full = tokens = 0
        right = 0.0
        while full < wanted and sampled < budget:
            missing = wanted - full
            count = math.ceil(missing * self.sampler.oversample) if self.sampler.dynamic else missing
            count = min(count, budget - sampled)
            part = self._sample(range(position + sampled, position + sampled + count), clock)
            sampled, tokens = sampled + len(part.prompts), tokens + part.tokens
            right += part.sampled_accuracy * len(part.prompts)
            if self.sampler.dynamic:
                useful = (part.rewards != part.rewards[:, :1]).any(1)
                part = _select(part, useful & (useful.cumsum(0) <= wanted - full))
            parts.append(part)
            full += len(part.prompts)
        return Rollouts(
            prompts=[p for k in parts for p in k.prompts],
            responses=[r for k in parts for r in k.responses],
            rewards=torch.cat([k.rewards for k in parts]),
            correct=torch.cat([k.correct for k in parts]),
            sampled=sampled,
            dropped=sampled - full,
            sampled_accuracy=right / sampled,
            tokens=tokens,
        )

    def _sample(self, positions: range, clock: Clock) -> Rollouts:
        group, settings, count = self.settings.group, self.settings, len(positions)
        missing = [position for position in positions if position not in self._waiting]
        if missing:  # these are the last ones, since batches take their prompts in order
            self.sample_ahead(clock, range(missing[0], positions.stop))
        problems = self.stream.at(positions)
        prompts, groups = zip(*(self._waiting.pop(position) for position in positions), strict=True)
        flat = [response for group_of_prompt in groups for response in group_of_prompt]
        with clock("reward"):
            problem_of_response = [p for p in problems for _ in range(group)]
            outcomes = grade_responses(problem_of_response, flat, self.grader, self.renderer.tokenizer)
            correct = torch.tensor([o == "correct" for o in outcomes], dtype=torch.float32)
        rewards = correct - _overlong(flat, settings.max_tokens, self.sampler.overlong_buffer)
        return Rollouts(
            list(prompts),
            list(groups),
            rewards.view(count, group),
            correct.view(count, group),
            sampled=count,
            dropped=0,
            sampled_accuracy=correct.mean().item(),
            tokens=sum(len(r.ids) for r in flat),
        )


def grade_responses(
    problems: Sequence[Problem], responses: Sequence[Response], grader: Grader, tokenizer: Any
) -> list[Outcome]:
    """One outcome per (problem, response); every rank grades a share of them."""

    def outcomes(pairs: list[tuple[Problem, Response]]) -> list[Outcome]:
        share, answers = zip(*pairs, strict=True)
        texts = tokenizer.batch_decode([r.ids for r in answers], skip_special_tokens=True)
        return grader.grade(
            [p.answer for p in share],
            texts,
            [p.options for p in share],
            [p.id for p in share],
        )

    return map_over_ranks(outcomes, list(zip(problems, responses, strict=True)))


def _overlong(responses: list[Response], max_tokens: int, buffer_share: float) -> Tensor:
    """DAPO's soft overlong punishment (arXiv 2503.14476 eq. 13): 0 up to L_max − B, then linear up to 1 at L_max."""
    lengths = torch.tensor([len(r.ids) for r in responses], dtype=torch.float32)
    buffer = buffer_share * max_tokens
    return ((lengths - (max_tokens - buffer)) / buffer).clamp(0, 1) if buffer else torch.zeros_like(lengths)


def _select(rollouts: Rollouts, keep: Tensor) -> Rollouts:
    rows = keep.nonzero().squeeze(1).tolist()
    return replace(
        rollouts,
        prompts=[rollouts.prompts[i] for i in rows],
        responses=[rollouts.responses[i] for i in rows],
        rewards=rollouts.rewards[keep],
        correct=rollouts.correct[keep],
    )
