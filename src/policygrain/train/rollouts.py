"""From prompts to a batch of judged responses: drawing, sampling groups, rewards, dynamic sampling."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..clock import Clock
from ..grading import Grader
from ..methods.schema import Sampler
from ..provenance import seed_of
from ..rollout.engine import Engine, Request, Response
from ..study.schema import Training
from ..tasks.problem import Problem
from ..tasks.prompts import PromptRenderer
from .ranks import map_over_ranks
from .rewards import judge


class PromptStream:
    """Training problems in an order that the seed decides, a new shuffle each epoch; ``position`` is all its state."""

    def __init__(self, problems: list[Problem], seed: int, position: int = 0) -> None:
        self.problems, self.seed, self.position = problems, seed, position
        self._orders: dict[int, list[int]] = {}

    def draw(self, count: int) -> list[tuple[int, Problem]]:
        """The next problems, each with its place in the stream."""
        places = range(self.position, self.position + count)
        self.position += count
        size = len(self.problems)
        return [(place, self.problems[self._order(place // size)[place % size]]) for place in places]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self.problems)))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            self._orders = {epoch: order}
        return self._orders[epoch]


@dataclass
class Rollouts:
    """A batch. Groups stay together: everything is [prompts, group] or [prompts][group]."""

    prompts: list[list[int]]
    responses: list[list[Response]]
    rewards: Tensor
    correct: Tensor
    drawn: int  # prompts sampled for it
    dropped: int  # … of which were left out: groups of equal rewards, and what was more than needed
    sampled_accuracy: float  # of everything drawn, before anything was left out
    tokens: int  # response tokens sampled for it, dropped groups included


@dataclass(frozen=True)
class Collector:
    """What sampling a batch needs."""

    stream: PromptStream
    engine: Engine
    grader: Grader
    renderer: PromptRenderer
    sampler: Sampler
    settings: Training
    seed: int

    def collect(self, clock: Clock) -> Rollouts:
        """A batch of ``prompts_per_step`` groups; fewer only when dynamic sampling gave up after ``max_batches``."""
        wanted = self.settings.prompts_per_step
        budget = wanted * (self.sampler.max_batches if self.sampler.dynamic else 1)
        kept: list[Rollouts] = []
        drawn = full = tokens = 0
        right = 0.0
        while full < wanted and drawn < budget:
            missing = wanted - full
            draw = math.ceil(missing * self.sampler.oversample) if self.sampler.dynamic else missing
            part = self._sample(min(draw, budget - drawn), clock)
            drawn, tokens = drawn + len(part.prompts), tokens + part.tokens
            right += part.sampled_accuracy * len(part.prompts)
            if self.sampler.dynamic:
                useful = (part.rewards != part.rewards[:, :1]).any(1)
                part = _select(part, useful & (useful.cumsum(0) <= wanted - full))
            kept.append(part)
            full += len(part.prompts)
        return Rollouts(
            prompts=[p for k in kept for p in k.prompts],
            responses=[r for k in kept for r in k.responses],
            rewards=torch.cat([k.rewards for k in kept]),
            correct=torch.cat([k.correct for k in kept]),
            drawn=drawn,
            dropped=drawn - full,
            sampled_accuracy=right / drawn,
            tokens=tokens,
        )

    def _sample(self, count: int, clock: Clock) -> Rollouts:
        group, settings = self.settings.group, self.settings
        places, problems = zip(*self.stream.draw(count), strict=True)
        prompts = [self.renderer.ids(p.problem) for p in problems]
        # A response's seed hangs on the prompt's place in the stream, so all methods get the same luck.
        requests = [
            Request(prompt, seed_of(self.seed, place, i), settings.max_tokens, settings.temperature)
            for place, prompt in zip(places, prompts, strict=True)
            for i in range(group)
        ]
        with clock("generate"):
            flat = map_over_ranks(self.engine.generate, requests)
        with clock("reward"):
            each = [p for p in problems for _ in range(group)]
            outcomes = judge(each, flat, self.grader, self.renderer.tokenizer)
            correct = torch.tensor([o == "correct" for o in outcomes], dtype=torch.float32)
        rewards = correct - _overlong(flat, settings.max_tokens, self.sampler.overlong_buffer)
        return Rollouts(
            prompts,
            [flat[i : i + group] for i in range(0, len(flat), group)],
            rewards.view(count, group),
            correct.view(count, group),
            drawn=count,
            dropped=0,
            sampled_accuracy=correct.mean().item(),
            tokens=sum(len(r.ids) for r in flat),
        )


def _overlong(responses: list[Response], max_tokens: int, buffer_share: float) -> Tensor:
    """DAPO's soft overlong punishment (2503.14476 eq. 13): 0 up to L_max − B, then linearly to 1 at L_max."""
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
