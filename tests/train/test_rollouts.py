"""Between sampling and the loss: the overlong punishment and dynamic sampling, with a scripted engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from policygrain.clock import Clock
from policygrain.model.engine import Request, Response
from policygrain.objective import Sampler
from policygrain.study.schema import Training
from policygrain.tasks.problem import Problem
from policygrain.train.rollouts import Collector, PromptStream, Rollouts, _overlong


class Scripted:
    """Which of prompt n's responses are right is in ``script[n]``; it is engine, grader and prompt renderer at once."""

    name = "scripted"

    def __init__(self, script: Sequence[tuple[bool, ...]], lengths: Sequence[int]) -> None:
        self.script, self.lengths, self.tokenizer, self.asked = script, lengths, self, 0

    def ids(self, problem: str, program: bool = False) -> list[int]:
        return [int(problem)]

    def tool(self, source: str) -> None:
        """No problem has one."""

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        self.asked += len(requests)
        group = len(self.lengths)
        return [Response([7] * n, True, [-1.0] * n) for n in (self.lengths[i % group] for i in range(len(requests)))]

    def batch_decode(self, ids: list[list[int]], skip_special_tokens: bool) -> list[str]:
        return [""] * len(ids)

    def grade(self, golds: Sequence[str], texts: Sequence[str], options: Any, ids: Sequence[str]) -> list[str]:
        right = [self.script[int(prompt)][i % len(self.lengths)] for i, prompt in enumerate(ids)]
        return ["correct" if r else "incorrect" for r in right]


class InOrder(PromptStream):
    def _order(self, epoch: int) -> list[int]:
        return list(range(len(self.problems)))


MIXED, ALL, NONE = (True, False), (True, True), (False, False)


def collect(
    script: Sequence[tuple[bool, ...]], lengths: Sequence[int] = (3, 3), prompts: int = 2, **sampler: Any
) -> tuple[Rollouts, Scripted]:
    """A batch of groups of two, of these lengths."""
    part = Scripted(script, lengths)
    settings = Training(prompts_per_step=prompts, group=2, max_tokens=10)
    stream = InOrder([Problem(str(n), str(n), "", "") for n in range(len(script))], 0)
    return Collector(stream, part, part, part, Sampler(**sampler), settings, 0).collect(Clock()), part


def test_the_overlong_punishment_by_hand() -> None:
    responses = [Response([0] * n, True, [0.0] * n) for n in (1, 8, 9, 10)]  # L_max 10, B 2: free up to 8
    assert _overlong(responses, 10, 0.2).tolist() == pytest.approx([0, 0, 0.5, 1])
    assert _overlong(responses, 10, 0.0).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_batches_that_are_sampled_together_are_those_of_single_calls(dynamic: bool) -> None:
    """The same prompts, seeds and rewards, by fewer calls of the engine."""
    script = [MIXED, ALL, NONE, MIXED, MIXED, ALL, MIXED, MIXED] * 2
    part = Scripted(script, (3, 4))
    settings = Training(prompts_per_step=2, group=2, max_tokens=10)
    stream = InOrder([Problem(str(n), str(n), "", "") for n in range(len(script))], 0)
    batches: dict[bool, list[Rollouts]] = {}
    for together in (False, True):
        collector = Collector(stream, part, part, part, Sampler(dynamic=dynamic), settings, 0)
        if together:
            collector.sample_ahead(Clock(), range(6))
        position, batches[together] = 0, []
        for _ in range(3):
            batches[together].append(collector.collect(Clock(), position))
            position += batches[together][-1].sampled
        assert not collector._waiting
    for one, other in zip(*batches.values(), strict=True):
        assert one.prompts == other.prompts and one.sampled == other.sampled
        assert torch.equal(one.rewards, other.rewards)


def test_groups_of_equal_rewards_are_replaced() -> None:
    rollouts, part = collect([ALL, NONE, NONE, MIXED, NONE, MIXED, ALL], dynamic=True)
    # Four are sampled for two and one is useful; then two more for the other, of which one is.
    assert rollouts.prompts == [[3], [5]]
    assert (rollouts.sampled, rollouts.dropped, part.asked) == (6, 4, 12)
    assert rollouts.sampled_accuracy == pytest.approx(4 / 12)
    assert rollouts.tokens == 12 * 3
    assert rollouts.rewards.tolist() == [[1, 0], [1, 0]]


def test_groups_beyond_the_batch_are_left_out() -> None:
    rollouts, _ = collect([ALL, MIXED, MIXED, MIXED], dynamic=True)
    assert rollouts.prompts == [[1], [2]]
    assert (rollouts.sampled, rollouts.dropped) == (4, 2)
    rollouts, _ = collect([ALL, MIXED, MIXED, MIXED], dynamic=True, oversample=1.5)
    assert rollouts.prompts == [[1], [2]]
    assert (rollouts.sampled, rollouts.dropped) == (3, 1)


def test_dynamic_sampling_gives_up_after_max_batches() -> None:
    rollouts, _ = collect([NONE] * 3 + [MIXED] + [NONE] * 20, dynamic=True, max_batches=3)
    assert rollouts.prompts == [[3]]
    assert (rollouts.sampled, rollouts.dropped) == (6, 5)


def test_without_dynamic_sampling_nothing_is_left_out() -> None:
    rollouts, _ = collect([ALL, NONE, MIXED])
    assert rollouts.prompts == [[0], [1]]
    assert (rollouts.sampled, rollouts.dropped) == (2, 0)


def test_a_group_is_dropped_by_its_rewards_the_punishment_included() -> None:
    """Our reading of DAPO's condition, which counts correct responses: docs/methods/dapo.md."""
    rollouts, _ = collect([ALL], lengths=(3, 10), prompts=1, dynamic=True, overlong_buffer=0.2)
    assert rollouts.rewards.tolist() == [[1, 0]]
    rollouts, _ = collect([ALL], lengths=(3, 10), prompts=1, dynamic=True)
    assert rollouts.prompts == []
