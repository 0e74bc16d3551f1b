"""Settings that controls use: other sampling seeds, shuffled rewards, a learning rate of zero."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from policygrain.files import read_json_lines
from policygrain.study.runs import control_arms, run_matrix
from policygrain.train.rollouts import _shuffled

from ..support.small import small_study, train_small

CONTROLS = {
    "controls": {"method": "grpo", "worse": "poor"},
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
