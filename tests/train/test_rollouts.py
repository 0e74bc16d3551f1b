"""Between sampling and the loss: the overlong punishment and dynamic sampling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from policygrain.clock import Clock
from policygrain.files import read_json_lines
from policygrain.model.engine import Response
from policygrain.objective import Sampler
from policygrain.study.schema import Training
from policygrain.train.rollouts import Rollouts, _overlong

from ..support.scripted import Scripted
from ..support.small import small_study, train_small

MIXED, ALL, NONE = (True, False), (True, True), (False, False)


def collect(
    script: Sequence[tuple[bool, ...]], lengths: Sequence[int] = (3, 3), prompts: int = 2, **sampler: Any
) -> tuple[Rollouts, Scripted]:
    """A batch of groups of two, of these lengths."""
    part = Scripted(script, lengths)
    settings = Training(prompts_per_step=prompts, group=2, max_tokens=10)
    return part.collector(settings, Sampler(**sampler)).collect(Clock()), part


def test_the_overlong_punishment_by_hand() -> None:
    responses = [Response([0] * n, True, [0.0] * n) for n in (1, 8, 9, 10)]  # L_max 10, B 2: free up to 8
    assert _overlong(responses, 10, 0.2).tolist() == pytest.approx([0, 0, 0.5, 1])
    assert _overlong(responses, 10, 0.0).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_batches_that_are_sampled_together_are_those_of_single_calls(dynamic: bool) -> None:
    """The same prompts, seeds and rewards, by fewer calls of the engine."""
    script = [MIXED, ALL, NONE, MIXED, MIXED, ALL, MIXED, MIXED] * 2
    part, settings = Scripted(script, (3, 4)), Training(prompts_per_step=2, group=2, max_tokens=10)
    batches: dict[bool, list[Rollouts]] = {}
    for together in (False, True):
        collector = part.collector(settings, Sampler(dynamic=dynamic))
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
    assert (rollouts.sampled, rollouts.dropped, sum(map(len, part.asked))) == (6, 4, 12)
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
    """Our reading of DAPO's condition, which counts correct responses: docs/methods/grpo.md."""
    rollouts, _ = collect([ALL], lengths=(3, 10), prompts=1, dynamic=True, overlong_buffer=0.2)
    assert rollouts.rewards.tolist() == [[1, 0]]
    rollouts, _ = collect([ALL], lengths=(3, 10), prompts=1, dynamic=True)
    assert rollouts.prompts == []


def test_a_learning_rate_of_zero_changes_no_weight(made: tuple[Path, Path], tmp_path: Path) -> None:
    run = train_small(small_study(training={"learning_rate": 0.0}), tmp_path / "run", *made)
    accuracies = {
        row["validation_accuracy"] for row in read_json_lines(run / "metrics.jsonl") if "validation_accuracy" in row
    }
    assert len(accuracies) == 1
    before, after = (load_file(folder / "model.safetensors") for folder in (made[1], run / "model"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
