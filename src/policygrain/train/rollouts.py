"""Rollouts of a training step: prompts, groups of responses, rewards, dynamic sampling."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..clock import Clock
from ..data.problem import Problem
from ..data.prompts import PromptRenderer
from ..grading import Grader, Item, Outcome
from ..model.engine import Engine, Request, Rollout
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
        size = len(self.problems)
        return [self.problems[self._order(position // size)[position % size]] for position in positions]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self.problems)))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            self._orders = {epoch: order}
        return self._orders[epoch]


def prompt_stream(problems: list[Problem], seed: int) -> PromptStream:
    return PromptStream(problems, seed_of("prompts", seed))


def response_seeds(seed: int, position: int, group: int) -> list[int]:
    """Sampling seeds of the responses to the prompt at ``position``: the same for all methods and trainers."""
    return [seed_of(seed, position, number) for number in range(group)]


@dataclass(frozen=True)
class Collector:
    """Samples and grades rollouts."""

    stream: PromptStream
    engine: Engine
    grader: Grader
    renderer: PromptRenderer
    sampler: Sampler
    settings: Training
    seed: int
    all_log_probs: bool = True  # of the engine; False: of every fourth group, to compare engine and trainer

    def collect(self, model: Any, position: int, clock: Clock) -> tuple[list[Rollout], dict[str, float]]:
        """Sample from ``model`` and grade ``prompts_per_step`` groups, fewer only where dynamic sampling gives up.

        Returns the rollouts, group by group, and counts, which include groups that are dropped. Prompts are the
        ``groups_drawn`` of the stream from ``position`` on.
        """
        wanted, sampler = self.settings.prompts_per_step, self.sampler
        budget = wanted * (sampler.max_batches if sampler.dynamic else 1)
        kept: list[list[Rollout]] = []
        sampled: list[Rollout] = []
        drawn = 0
        with clock("synchronise"):
            self.engine.load_weights(model)
        while len(kept) < wanted and drawn < budget:
            missing = wanted - len(kept)
            count = min(budget - drawn, math.ceil(missing * sampler.oversample) if sampler.dynamic else missing)
            groups = self._graded(range(position + drawn, position + drawn + count), clock)
            sampled += itertools.chain(*groups)
            drawn += count
            useful = [group for group in groups if not sampler.dynamic or len({r.reward for r in group}) > 1]
            kept += useful[:missing]
        self.engine.sleep()
        return [*itertools.chain(*kept)], {
            "sampled_accuracy": sum(rollout.correct for rollout in sampled) / len(sampled),
            "sampled_tokens": sum(len(rollout.ids) for rollout in sampled),
            "groups_drawn": drawn,
            "groups_dropped": drawn - len(kept),  # those with equal rewards, and surplus ones
        }

    def _graded(self, positions: range, clock: Clock) -> list[list[Rollout]]:
        """A graded group for each prompt at these positions of the stream."""
        problems, group = self.stream.at(positions), self.settings.group
        requests = []
        for number, (position, prompt) in enumerate(zip(positions, self._prompts(problems), strict=True)):
            log_probs = self.all_log_probs or number % 4 == 0
            requests += [self._request(prompt, seed, log_probs) for seed in response_seeds(self.seed, position, group)]
        with clock("generate"):
            rollouts = map_over_ranks(self.engine.generate, requests)
        with clock("reward"):
            problem_of_rollout = [problem for problem in problems for _ in range(group)]
            for rollout, outcome in zip(rollouts, self._outcomes(problem_of_rollout, rollouts), strict=True):
                rollout.correct = outcome == "correct"
                punishment = overlong(len(rollout.ids), self.settings.max_tokens, self.sampler.overlong_buffer)
                rollout.reward = rollout.correct - punishment
        return [rollouts[i : i + group] for i in range(0, len(rollouts), group)]

    def answers(
        self, problems: Sequence[Problem], seeds: Iterable[int], model: Any
    ) -> tuple[list[Rollout], list[Outcome]]:
        """A response of ``model`` to each problem, sampled with the seed at its place, and its outcome."""
        pairs = zip(self._prompts(problems), seeds, strict=True)
        requests = [self._request(prompt, seed, log_probs=False) for prompt, seed in pairs]
        self.engine.load_weights(model)
        rollouts = map_over_ranks(self.engine.generate, requests)
        self.engine.sleep()
        return rollouts, self._outcomes(problems, rollouts)

    def _outcomes(self, problems: Sequence[Problem], rollouts: Sequence[Rollout]) -> list[Outcome]:
        """One outcome per (problem, rollout); every rank grades a share of them."""

        def grade(pairs: list[tuple[Problem, Rollout]]) -> list[Outcome]:
            texts = self.renderer.responses([p for p, _ in pairs], [rollout.ids for _, rollout in pairs])
            items = [Item(p.answer, text, p.options, p.id) for (p, _), text in zip(pairs, texts, strict=True)]
            return self.grader.grade(items)

        return map_over_ranks(grade, list(zip(problems, rollouts, strict=True)))

    def _prompts(self, problems: Iterable[Problem]) -> list[list[int]]:
        return [self.renderer.ids(problem.problem, bool(problem.options.tests)) for problem in problems]

    def _request(self, prompt: list[int], seed: int, log_probs: bool) -> Request:
        return Request(prompt, seed, self.settings.max_tokens, self.settings.temperature, log_probs=log_probs)


def overlong(length: int, max_tokens: int, buffer_share: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476 eq. 13): 0 up to L_max − B, then linear up to 1 at L_max."""
    buffer = buffer_share * max_tokens
    return min(1.0, max(0.0, (length - (max_tokens - buffer)) / buffer)) if buffer else 0.0
