"""Between sampling and the loss: the overlong punishment, dynamic sampling, and settings that controls use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from policygrain.clock import Clock
from policygrain.files import read_json_lines
from policygrain.model.engine import Response
from policygrain.objective import Sampler
from policygrain.study.runs import control_arms, run_matrix
from policygrain.study.schema import Training
from policygrain.train.rollouts import Rollouts, _overlong, _shuffled

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


CONTROLS = {
    "sanity_checks": {"method": "grpo", "worse": "poor"},
    "methods": {"poor": {"base": "grpo", "clip": {"low": 1e-5}}},
}


def metrics(run: Path) -> list[dict[str, float]]:
    return read_json_lines(run / "metrics.jsonl")


def test_the_arms_of_the_controls_are_runs_of_the_study() -> None:
    study = small_study(**CONTROLS)
    arms = {role: arm.name for role, arm in control_arms(study).items()}
    assert arms == {
        "baseline": "grpo",
        "other_seeds": "grpo+sampling_seed=1",
        "shuffled_rewards": "grpo+shuffle_rewards=True",
        "zero_learning_rate": "grpo+learning_rate=0.0",
        "worse": "poor",
    }
    matrix = run_matrix(study)
    assert [run.arm for run in matrix.experiments["controls"]] == list(arms.values())
    assert {run.arm for run in matrix.evaluated} == {"grpo"}, "controls are judged by validation"
    assert control_arms(small_study()) == {}


def test_other_sampling_seeds_see_other_prompts_from_the_same_start(made: tuple[Path, Path], tmp_path: Path) -> None:
    one, same, other = (
        metrics(train_small(small_study(training={"sampling_seed": seed}), tmp_path / name, *made))
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    assert one == same != other
    key = "validation_accuracy"
    assert one[0][key] == other[0][key], "the same initial model on the same validation problems"
    assert [row.get("accuracy") for row in one] != [row.get("accuracy") for row in other]


def test_a_learning_rate_of_zero_changes_no_weight(made: tuple[Path, Path], tmp_path: Path) -> None:
    run = train_small(small_study(training={"learning_rate": 0.0}), tmp_path / "run", *made)
    accuracies = {row["validation_accuracy"] for row in metrics(run) if "validation_accuracy" in row}
    assert len(accuracies) == 1
    before, after = (load_file(folder / "model.safetensors") for folder in (made[1], run / "model"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=6), st.integers(0, 2**60))
def test_shuffled_rewards_are_permuted_within_their_group(rows: list[list[float]], seed: int) -> None:
    rewards = torch.tensor(rows)
    seeds = [seed + i for i in range(len(rows))]
    found = _shuffled(rewards, seeds)
    assert torch.equal(found.sort(1).values, rewards.sort(1).values)
    assert torch.equal(found, _shuffled(rewards, seeds))
    # A group's order depends on its own seed alone, so dynamic sampling, which drops groups, changes no other.
    assert torch.equal(found[:1], _shuffled(rewards[:1], seeds[:1]))


def test_shuffled_rewards_do_not_follow_correctness(made: tuple[Path, Path], tmp_path: Path) -> None:
    larger = {"prompts_per_step": 24, "steps": 1}  # some groups have unequal rewards
    (plain, _), (shuffled, _) = (
        metrics(train_small(small_study(training={**larger, "shuffle_rewards": on}), tmp_path / str(on), *made))
        for on in (False, True)
    )
    assert plain["reward_mean"] == shuffled["reward_mean"] > 0 and plain["accuracy"] == shuffled["accuracy"]
    assert plain["gradient_norm"] != shuffled["gradient_norm"]
