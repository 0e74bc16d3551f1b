"""`training.trainer: verl`: what is written for verl, attempts with a program in its place, and what is read back.

Whole runs by verl itself are in test_verl_run.py.
"""

import importlib
import itertools
import json
import math
import os
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from policygrain.clock import Clock
from policygrain.errors import Stopped, UserError
from policygrain.integrations.options import EXPORTED
from policygrain.objective import Method
from policygrain.paths import DataFolder, RunFolder
from policygrain.provenance import seed_of
from policygrain.results import run_metrics, run_summary, run_timings
from policygrain.study import Study
from policygrain.study.runs import different_parts
from policygrain.study.schema import Training
from policygrain.train.batch import minibatches
from policygrain.train.rollouts import PromptStream
from policygrain.train.stopping import Stop
from policygrain.trainers.verl import (
    PYTHON,
    VERL,
    export,
    final_model,
    of_study,
    read_back,
    read_log,
    records_of,
    training_rows,
)

from ..support.files import load_script, write_lines
from ..support.scripted import Scripted
from ..support.small import small_study, train_small
from .test_check import arm_of

PROBLEMS = [
    {"id": str(i), "problem": f"what is {i} + 1?", "answer": str(i + 1), "relative_tolerance": 0.01} for i in range(4)
]
STEPS, RIGHT = 4, 6  # right responses of the 16 of a step
SETTINGS = small_study().training


# ---- what is written for verl ----------------------------------------------------------------------------------------


def study_of(method: str = "tepo_v1", methods: dict[str, Any] | None = None, **training: Any) -> Study:
    settings = {"prompts_per_step": 16, "group": 8, "updates_per_batch": 4, "steps": 40, "temperature": 0.9} | training
    prompt = {"template": "{problem} box it.", "chat": True, "system": "be brief."}
    experiments = {"headline": {"methods": [method]}}
    return small_study(training=settings, prompt=prompt, experiments=experiments, methods=methods or {})


def exported(study: Study, folder: Path, start: Path) -> Path:
    for name in ("train", "validation"):
        write_lines(folder / "data" / f"{name}.jsonl", PROBLEMS)
    export(study, arm_of(study), 3, str(start), DataFolder(folder / "data"), folder / "out")
    return folder / "out"


def test_settings_are_in_verl_s_terms():
    """2 × 4 optimizer steps per batch; verl raises the learning rate once per batch, 3 times for 20 optimizer steps."""
    for method, divides in (("tepo_v1", True), ("dr_grpo", False)):
        study = study_of(method, epochs=2, warmup_updates=20)
        found = of_study(study, arm_of(study), 0, "start")
        keys = ("ppo_epochs", "ppo_mini_batch_size", "optim.lr_warmup_steps")
        assert [found[f"actor_rollout_ref.actor.{key}"] for key in keys] == [2, 4, 3]
        assert found["algorithm.norm_adv_by_std_in_grpo"] == divides


def test_the_folder_has_problems_with_messages_and_a_reward_that_grades(chat_start, tmp_path):
    out = exported(study_of().model_copy(update={"grader": "math"}), tmp_path, chat_start)
    rows = pd.read_parquet(out / "train.parquet")
    row = next(row for row in rows.to_dict("records") if row["extra_info"]["id"] == "1")
    assert [dict(message) for message in row["prompt"]] == [
        {"role": "system", "content": "be brief."},
        {"role": "user", "content": "what is 1 + 1? box it."},
    ]
    assert row["reward_model"]["ground_truth"] == "2"
    reward = load_script(out / "reward.py")
    for answer, right in (("2", 1.0), ("3", 0.0), ("1.99", 1.0)):  # with the options of the problem
        assert reward.compute_score("small", rf"so \boxed{{{answer}}}", "2", extra_info=row["extra_info"]) == right


def test_without_chat_the_prompt_is_the_study_s(made, tmp_path):
    """By a template that joins the texts, which are the whole prompt; and verl's own keys are passed on."""
    from jinja2 import Template

    own_keys = {"trainer": {"n_gpus_per_node": 4, "nnodes": 2}, "actor_rollout_ref": {"rollout": {"name": "sglang"}}}
    study = study_of(trainer="verl", verl=own_keys)
    out = exported(study.model_copy(update={"prompt": small_study().prompt}), tmp_path, made[1])
    written = yaml.safe_load((out / "verl.yaml").read_text())
    template = Template(written["actor_rollout_ref"]["model"]["custom_chat_template"])
    rows = pd.read_parquet(out / "validation.parquet")
    messages = [dict(message) for message in rows["prompt"][1]]
    assert template.render(messages=messages, add_generation_prompt=True) == "what is 1 + 1?\n"
    assert len(rows["extra_info"][1]["prompt_ids"]) == len("what is 1 + 1?\n"), "a tokenizer of characters"
    rollout, trainer = written["actor_rollout_ref"]["rollout"], written["trainer"]
    assert (trainer["n_gpus_per_node"], trainer["nnodes"], rollout["name"], rollout["n"]) == (4, 2, "sglang", 8)


def test_training_rows_are_what_the_loop_samples_in_the_order_of_its_minibatches():
    recorder = Scripted([(False, False)] * 5)
    settings = Training(prompts_per_step=4, group=2, updates_per_batch=2)
    stream = PromptStream(recorder.problems, seed_of("prompts", 3))
    collector = recorder.collector(settings, seed=3, stream=stream)
    rows = training_rows(recorder.problems, settings, 3)
    for step in range(3):
        collector.collect(None, 4 * step, Clock())
        order = torch.cat(minibatches(4, 2, 2, seed_of("minibatches", 3, step)))
        sampled = [(int(p.problem), s) for p, seeds in itertools.islice(rows, 4) for s in seeds]
        assert sampled == [recorder.asked[step][place] for place in order]


# A preset that the study changes, a method that only the study has, and a preset.
OF_STUDIES: dict[str, dict[str, Any]] = {
    "dapo": {"clip": {"low": 0.1, "high": 0.14}, "sampler": {"overlong_buffer": 0.0}},
    "narrow": {"base": "gspo", "clip": {"low": 0.003, "high": 0.004}, "aggregation": "token_mean"},
    "tepo_v1": {},
}


@pytest.mark.parametrize("name", OF_STUDIES)
def test_a_worker_of_verl_trains_with_the_method_of_the_study(name, chat_start, tmp_path, monkeypatch):
    """What it registers, name of a loss → its method; verl itself need not be installed."""
    registered: dict[str, Method] = {}
    verl: Any = types.ModuleType("verl")
    verl.register_policy_loss = lambda name: lambda loss: registered.__setitem__(name, loss.args[0])
    for module in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.core_algos"):
        monkeypatch.setitem(sys.modules, module, verl)
    monkeypatch.delitem(sys.modules, "policygrain.integrations.verl", raising=False)
    integration = importlib.import_module("policygrain.integrations.verl")
    monkeypatch.delitem(sys.modules, "policygrain.integrations.verl")
    study = study_of(name, OF_STUDIES)
    out = exported(study, tmp_path, chat_start)
    mode = yaml.safe_load((out / "verl.yaml").read_text())["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"]
    assert mode not in registered, "a worker without the folder must not train with a preset of the same name"
    monkeypatch.setenv(EXPORTED, str(out.rename(tmp_path / "moved")))
    integration.register()
    assert different_parts(registered[mode], arm_of(study).method) == []


# ---- attempts, with a program in place of verl -----------------------------------------------------------------------

# What `python -m verl.trainer.main_ppo` leaves in the folder of a run, of 4 steps in all.
PROGRAM = Path(__file__).with_name("verl_program.txt").read_text()


@pytest.fixture
def attempt(tmp_path, made, monkeypatch):
    """A function that trains the run in `tmp_path / "run"` with the program, which writes its process id to `pid`."""
    program = tmp_path / "python"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(program))
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    monkeypatch.setattr("policygrain.trainers.launch.POLL_SECONDS", 0.05)

    def train(what: str, stop: Stop | None = None, **training: object) -> RunFolder:
        monkeypatch.setenv("WHAT", what)
        study = small_study(training={"trainer": "verl", "verl": {"trainer": {"device": "cpu"}}, **training})
        return RunFolder(train_small(study, tmp_path / "run", *made, stop=stop))

    return train


def test_a_killed_attempt_is_resumed_and_its_log_is_continued(attempt, tmp_path):
    with pytest.raises(UserError, match=r"no checkpoint, so the same command starts from the beg[^$]*the GPU is lost$"):
        attempt("no checkpoint")
    with pytest.raises(UserError, match=r"exit code -9; the same command resumes from verl's checkpoint of step 2"):
        attempt("killed after 3")
    config = tmp_path / "run" / "verl" / "verl.yaml"
    written = config.read_text()
    config.write_text(written.replace("lr: ", "lr: 1"))
    run = attempt("ends")
    assert config.read_text() == written, "an attempt has the settings of the study"
    rows = run_metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    # Steps 1 and 2 are of the first attempt; the second one validated at step 2, and made step 3 again.
    assert [row["learning_rate"] for row in rows[:-1]] == [len("killed after 3")] * 2 + [len("ends")] * 2
    assert [row["validation_accuracy"] for row in rows] == [0.0, 0.1, 0.2, 0.3, 0.4]
    summary, record = run_summary(run), run.summary.read_bytes()
    assert (summary.environment.engine, summary.final.steps, summary.final.validation_accuracy) == ("verl", 4, 0.4)
    attempt("no checkpoint")  # it has ended: verl is not started
    assert run.summary.read_bytes() == record


def test_verl_is_ended_at_the_time_limit(attempt, tmp_path):
    newest = tmp_path / "run" / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"

    class WhenSaved(Stop):
        def after_step(self, seconds: float) -> str | None:
            return "SIGTERM" if newest.exists() else None

    with pytest.raises(Stopped, match="stopped by SIGTERM; the same command resumes from verl's checkpoint of step 2"):
        attempt("waits after 2", stop=WhenSaved())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_without_a_gpu_or_a_device_nothing_is_started(attempt, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=r"verl trains on GPUs, and none is visible.*training\.verl\.trainer\.device"):
        attempt("ends", verl={})
    assert not (tmp_path / "run" / "verl").exists() and not (tmp_path / "pid").exists()


# ---- what is read back -----------------------------------------------------------------------------------------------


def metrics_of_verl(step: int) -> dict[str, float]:
    """What verl's `fit` logs at a step, by its own names (checked against verl below)."""
    names = [*VERL["metrics"].values(), *VERL["timings"].values()]
    found = {theirs: 0.5 for theirs in names if "filter_groups" not in theirs}
    found |= {"actor/entropy": 1.0 - 0.1 * step, "response_length/mean": 10.0, "critic/score/mean": RIGHT / 16}
    found |= {"actor/policygrain/clip_fraction_low": 0.01, "training/global_step": step}
    return found | ({"val-core/small/reward/mean@1": 0.4} if step % 2 == 0 else {})


@pytest.fixture
def trained(made, tmp_path):
    """A folder in which verl has trained."""
    folder = tmp_path / "verl"
    lines = [{"step": 0, "data": {"val-core/small/reward/mean@1": 0.2}}]
    write_lines(folder / "metrics.jsonl", [*lines, *({"step": s, "data": metrics_of_verl(s)} for s in (1, 2, 3, 4))])
    shutil.copytree(made[1], final_model(folder, STEPS))
    return folder


def test_a_run_of_verl_has_the_records_of_a_run(trained, tmp_path):
    run = RunFolder(tmp_path / "run")
    final = read_back(trained, SETTINGS, False, run)
    rows = run_metrics(run)
    # verl's step 1 is our step 0; its validation at step 2 is of the policy before our step 2.
    assert [row.get("validation_accuracy") for row in rows] == [0.2, None, 0.4, None, 0.4]
    assert [row.get("entropy_old") for row in rows[:-1]] == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert rows[0]["accuracy"] == rows[0]["sampled_accuracy"] == RIGHT / 16 and rows[0]["clip_fraction_low"] == 0.01
    assert [row["total_samples"] for row in rows] == [16, 32, 48, 64, 64] and rows[-1]["total_tokens"] == 640
    assert run_timings(run)[-1]["total_seconds"] == 4 * 0.5
    assert (final.updates, final.steps, final.validation_accuracy) == (8, 4, 0.4)
    assert (run.model / "model.safetensors").exists()


def test_with_dynamic_sampling_the_accuracy_before_it_is_unknown():
    data: dict[str, Any] = metrics_of_verl(1) | {"training/filter_groups/evicted_samples": 3}
    row = records_of({1: data}, SETTINGS, True)[0][0]
    passes = SETTINGS.model_copy(update={"epochs": 3})
    assert row["total_updates"] == 2 and records_of({1: data}, passes, True)[0][0] == row | {"total_updates": 6}
    assert (row["sampled_accuracy"], row["accuracy"], row["groups_dropped"]) == (None, RIGHT / 16, 3)
    assert (row["total_samples"], row["total_tokens"]) == (16 + 3 * 4, 280), "those of dropped groups included"


# The log of a spoilt run, and what is said.
SPOILT: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text[: text[:-1].rindex("\n") + 1], r"lack 1 of 4 steps \(4\)"),
    (lambda text: text[:-20], r"lack 1 of 4 steps \(4\)"),
    (lambda text: "".join(text.splitlines(keepends=True)[3:]), r"lack 2 of 4 steps \(1, 2\)"),
    (lambda text: "", r"the logs metrics\*\.jsonl lack 4 of 4 steps"),
    (lambda text: text.replace("val-core", "val-aux"), r"no validation after the last step"),
    (lambda text: text.replace('length/mean": 10.0', 'length/mean": null'), r"has null for resp"),
    (str, r"no model .*verl\.model_merger"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT)
def test_what_is_not_a_whole_run_is_refused_and_nothing_is_written(spoil, message, trained, tmp_path):
    log = trained / "metrics.jsonl"
    log.write_text(spoil(log.read_text()))
    if "no model" in message:  # but its shards
        (final_model(trained, 4) / "model.safetensors").unlink()
    with pytest.raises(UserError, match=message):
        read_back(trained, SETTINGS, False, RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_nan_that_verl_writes_as_null_is_nan(tmp_path):
    data = {"critic/score/mean": None, "response_length/mean": 8.0, "actor/grad_norm": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": data}) + "\n")
    row = records_of(read_log(tmp_path, 1), SETTINGS, False)[0][0]
    assert math.isnan(row["reward_mean"]) and row["response_length_mean"] == 8.0
