"""What verl saves, read back as the records of a run: its log, samples and final model, and what is refused."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.paths import RunFolder
from policygrain.results import run_metrics, run_timings
from policygrain.study.schema import Training
from policygrain.trainers.verl_results import METRICS, TIMINGS, final_model, metric_rows, read_back, read_log

from ..support.files import write_lines
from ..support.small import SMALL, small_study

STEPS, RIGHT = 4, 6  # right responses of the 16 of a step
SETTINGS, MOST = small_study().training, SMALL["training"]["max_tokens"]


def metrics_of_verl(step: int) -> dict[str, float]:
    """What verl's `fit` logs at a step, by its own names (checked against verl below)."""
    found = {theirs: 0.5 for theirs in [*METRICS.values(), *TIMINGS.values()] if "filter_groups" not in theirs}
    found |= {"actor/entropy": 1.0 - 0.1 * step, "response_length/mean": 10.0, "critic/score/mean": RIGHT / 16}
    found |= {"actor/policygrain/clip_fraction_low": 0.01, "training/global_step": step}
    return found | ({"val-core/small/reward/mean@1": 0.4} if step % 2 == 0 else {})


@pytest.fixture
def verl(made, tmp_path):
    """A folder in which verl has trained: texts of four lengths, by a tokenizer of characters."""
    folder, lengths = tmp_path / "verl", (MOST + 3, MOST, MOST - 1, 1)
    lines = [{"step": 0, "data": {"val-core/small/reward/mean@1": 0.2}}]
    write_lines(folder / "metrics.jsonl", [*lines, *({"step": s, "data": metrics_of_verl(s)} for s in (1, 2, 3, 4))])
    for name in ("rollouts/1", "rollouts/2", "rollouts/3", "rollouts/4", "validations/4"):
        rows = [{"output": "7" * lengths[i % 4], "score": float(i < RIGHT)} for i in range(16)]
        write_lines(folder / f"{name}.jsonl", rows)
    shutil.copytree(made[1], final_model(folder, STEPS))
    return folder


def test_a_run_of_verl_has_the_records_of_a_run(verl, tmp_path):
    run = RunFolder(tmp_path / "run")
    final, notes = read_back(verl, SETTINGS, False, run)
    rows = run_metrics(run)
    # verl's step 1 is our step 0; its validation at step 2 is of the policy before our step 2.
    assert [row.get("validation_accuracy") for row in rows] == [0.2, None, 0.4, None, 0.4] and not notes
    assert [row.get("entropy_old") for row in rows[:-1]] == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert rows[0]["accuracy"] == rows[0]["sampled_accuracy"] == RIGHT / 16 and rows[0]["clip_fraction_low"] == 0.01
    assert [row["total_samples"] for row in rows] == [16, 32, 48, 64, 64] and rows[-1]["total_tokens"] == 640
    assert run_timings(run)[-1]["total_seconds"] == 4 * 0.5
    assert (final.updates, final.steps, final.validation_accuracy) == (8, 4, 0.4)
    assert (run.model / "model.safetensors").exists()
    # verl's texts lack the end of a response; its share of truncated ones is of those as long as the longest.
    assert rows[1]["truncated_share"] == 0.5 and final.validation_length == (3 * MOST + 2) / 4


def test_the_logs_of_two_attempts_are_one_log(verl, tmp_path):
    lines = (verl / "metrics.jsonl").read_text().splitlines(keepends=True)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("".join(lines[:4]))
    second.write_text("".join(lines[3:]))
    assert read_log([first, second], STEPS, tmp_path) == read_log([verl / "metrics.jsonl"], STEPS, tmp_path)
    with pytest.raises(UserError, match=r"lack 2 of 4 steps \(1, 2\).*overwrites its file"):
        read_log([second], STEPS, tmp_path)


def test_with_dynamic_sampling_the_accuracy_before_it_is_unknown():
    data: dict[str, Any] = metrics_of_verl(1) | {"training/filter_groups/evicted_samples": 3}
    row = metric_rows({1: data}, SETTINGS, True, {}, {})[0]
    passes = SETTINGS.model_copy(update={"epochs": 3})
    assert row["total_updates"] == 2 and metric_rows({1: data}, passes, True, {}, {})[0] == row | {"total_updates": 6}
    assert (row["sampled_accuracy"], row["accuracy"], row["groups_dropped"]) == (None, RIGHT / 16, 3)
    assert (row["total_samples"], row["total_tokens"]) == (16 + 3 * 4, 280), "those of dropped groups included"


def edited(change: Callable[[str], str]) -> Callable[[Path], object]:
    """A function that changes the log."""
    return lambda folder: (folder / "metrics.jsonl").write_text(change((folder / "metrics.jsonl").read_text()))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (edited(lambda t: t[: t[:-1].rindex("\n") + 1]), r"lack 1 of 4 steps \(4\)\. Either verl's run has not ended"),
        (edited(lambda text: text[:-20]), r"lack 1 of 4 steps \(4\)"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), r"the logs metrics\*\.jsonl lack 4 of 4 steps"),
        (lambda folder: (final_model(folder, 4) / "model.safetensors").unlink(), r"no model in .*verl\.model_merger"),
        (edited(lambda text: text.replace("val-core", "val-aux")), r"no validation after the last step"),
        (
            lambda folder: (folder / "rollouts" / "3.jsonl").write_text('{"prompt": 1}\n'),
            r"3\.jsonl: expected lines with output and score",
        ),
    ],
    ids=["not ended", "truncated", "no log", "shards", "no validation", "samples"],
)
def test_what_is_not_a_whole_run_is_refused_and_nothing_is_written(spoil, message, verl, tmp_path):
    spoil(verl)
    with pytest.raises(UserError, match=message):
        read_back(verl, SETTINGS, False, RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_log_has_the_names_that_verl_gives(tmp_path, monkeypatch):
    """Written by verl's own file logger, from its own metric functions (`make test-peers`)."""
    pytest.importorskip("verl", reason="verl is not installed here; `make test-peers` has an environment with it")
    import torch
    from verl import DataProto
    from verl.trainer.ppo.metric_utils import compute_data_metrics, process_validation_metrics
    from verl.utils.py_functional import rename_dict
    from verl.utils.tracking import FileLogger

    tokens = torch.ones(4, 5)
    batch = dict.fromkeys(("token_level_rewards", "advantages", "returns", "response_mask"), tokens)
    batch |= dict.fromkeys(("responses", "prompts"), tokens.long()) | {"attention_mask": torch.ones(4, 10).long()}
    batch["token_level_scores"] = tokens * torch.tensor([[0.2], [0.2], [0.0], [0.0]])
    data = compute_data_metrics(DataProto.from_dict(tensors=batch), use_critic=False)
    data |= rename_dict({"policygrain/clip_fraction_low": 0.1, "pg_loss": 0.3, "grad_norm": 1.0, "lr": 1e-6}, "actor/")
    ((source, variables),) = process_validation_metrics(["small"] * 2, ["a", "b"], {"reward": [1.0, 0.0]}).items()
    ((name, value),) = variables["reward"].items()
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    logger = FileLogger("small", "grpo")
    logger.log(data | {f"val-core/{source}/reward/{name}": value}, 1)
    logger.finish()
    training = Training(prompts_per_step=1, group=4, updates_per_batch=1)
    first, last = metric_rows(read_log([tmp_path / "metrics.jsonl"], 1, tmp_path), training, False, {}, {})
    assert (first["reward_mean"], first["response_length_mean"], first["truncated_share"]) == (0.5, 5.0, 1.0)
    assert (first["clip_fraction_low"], first["policy_loss"], first["learning_rate"]) == (0.1, 0.3, 1e-6)
    assert last["validation_accuracy"] == 0.5 and last["total_tokens"] == 20


def test_nan_that_verl_writes_as_null_is_nan(tmp_path):
    data = {"critic/score/mean": None, "response_length/mean": 8.0, "actor/grad_norm": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": data}) + "\n")
    row = metric_rows(read_log([tmp_path / "metrics.jsonl"], 1, tmp_path), SETTINGS, False, {}, {})[0]
    assert math.isnan(row["reward_mean"]) and row["response_length_mean"] == 8.0
    with pytest.raises(UserError, match="no number for response_length_mean at step 1"):
        metric_rows({1: {"response_length/mean": math.nan}}, SETTINGS, False, {}, {})
