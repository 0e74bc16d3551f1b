"""An arm of a study as verl's configuration, read by verl's own classes (`make test-peers`)."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from policygrain import TokenBatch, method
from policygrain.cli import main
from policygrain.clock import Clock
from policygrain.errors import UserError
from policygrain.integrations.options import EXPORTED
from policygrain.paths import DataFolder, RunFolder
from policygrain.provenance import seed_of
from policygrain.results import run_summary
from policygrain.study import Study
from policygrain.study.runs import run_matrix
from policygrain.study.schema import Training
from policygrain.train.rollouts import PromptStream
from policygrain.train.update import minibatches
from policygrain.trainers.verl_export import config, differences, export, training_rows
from policygrain.trainers.verl_results import final_model

from ..support.batches import random_fields
from ..support.files import load_script, write_lines
from ..support.scripted import Scripted
from ..support.small import SMALL, small_study, train_small, write_study

PROBLEMS = [{"id": str(i), "problem": f"what is {i} + 1?", "answer": str(i + 1)} for i in range(4)]


def study_of(method: str = "tepo_v1", methods: dict[str, Any] | None = None, **training: Any) -> Study:
    settings = {"prompts_per_step": 16, "group": 8, "updates_per_batch": 4, "steps": 40, "temperature": 0.9} | training
    prompt = {"template": "{problem} box it.", "chat": True, "system": "be brief."}
    experiments = {"headline": {"methods": [method]}}
    return small_study(training=settings, prompt=prompt, experiments=experiments, name="small", methods=methods or {})


def data_in(folder: Path) -> Path:
    for name in ("train", "validation"):
        write_lines(folder / f"{name}.jsonl", PROBLEMS)
    return folder


def exported(study: Study, folder: Path, start: Path) -> Path:
    study = study.model_copy(update={"model": study.model.model_copy(update={"start": str(start)})})
    (arm,) = run_matrix(study).arms.values()
    export(study, arm, 3, DataFolder(data_in(folder / "data")), folder / "out", gpus=2)
    return folder / "out"


def test_passes_and_warmup_are_in_verl_s_units() -> None:
    """2 × 4 optimizer steps per batch; verl raises the learning rate once per batch, 3 times for 20 optimizer steps."""
    study = study_of(epochs=2, warmup_updates=20)
    (arm,) = run_matrix(study).arms.values()
    actor = config(study, arm, seed=0, longest=9, gpus=1)["actor_rollout_ref"]["actor"]
    assert (actor["ppo_epochs"], actor["ppo_mini_batch_size"], actor["optim"]["lr_warmup_steps"]) == (2, 4, 3)
    said = differences(arm.method(study), arm.training(study))
    assert sum("pass" in one or "warmup" in one for one in said) == 2
    plain = study_of()
    assert not any("pass over" in one or "warmup" in one for one in differences(arm.method(plain), plain.training))


def test_the_folder_has_problems_with_messages_and_a_reward_that_grades(chat_start: Path, tmp_path: Path) -> None:
    import pandas as pd

    out = exported(study_of(), tmp_path, chat_start)
    rows = pd.read_parquet(out / "train.parquet")
    row = next(row for row in rows.to_dict("records") if row["extra_info"]["id"] == "1")
    assert [dict(message) for message in row["prompt"]] == [
        {"role": "system", "content": "be brief."},
        {"role": "user", "content": "what is 1 + 1? box it."},
    ]
    assert row["reward_model"]["ground_truth"] == "2"
    reward = load_script(out / "reward.py")
    assert reward.compute_score("small", r"so \boxed{2}", "2") == 1.0
    assert reward.compute_score("small", r"so \boxed{3}", "2", extra_info={}) == 0.0


def test_without_chat_the_prompt_is_the_study_s(made: tuple[Path, Path], tmp_path: Path) -> None:
    """By a template that joins the texts, which are the whole prompt; and verl's own keys are passed on."""
    import pandas as pd
    from jinja2 import Template

    own_keys = {"trainer": {"n_gpus_per_node": 4, "nnodes": 2}, "actor_rollout_ref": {"rollout": {"name": "sglang"}}}
    study = study_of(trainer="verl", verl=own_keys)
    study = study.model_copy(update={"prompt": small_study().prompt})
    out = exported(study, tmp_path, made[1])
    written = yaml.safe_load((out / "verl.yaml").read_text())
    template = Template(written["actor_rollout_ref"]["model"]["custom_chat_template"])
    rows = pd.read_parquet(out / "validation.parquet")
    messages = [dict(message) for message in rows["prompt"][1]]
    assert template.render(messages=messages, add_generation_prompt=True) == "what is 1 + 1?\n"
    assert len(rows["extra_info"][1]["prompt_ids"]) == len("what is 1 + 1?\n"), "a tokenizer of characters"
    assert (written["trainer"]["n_gpus_per_node"], written["trainer"]["nnodes"]) == (4, 2)
    rollout = written["actor_rollout_ref"]["rollout"]
    assert (rollout["name"], rollout["n"]) == ("sglang", 8), "the other keys stay"


def test_verl_reads_the_configuration_by_its_own_classes(
    chat_start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verl", reason="verl is not installed here; `make test-peers` has an environment with it")
    from hydra import compose, initialize_config_dir
    from verl.utils.config import omega_conf_to_dataclass

    out = exported(study_of(learning_rate=3e-6, epochs=2, max_grad_norm=0.3), tmp_path, chat_start)
    monkeypatch.setenv(EXPORTED, "/moved")
    with initialize_config_dir(str(out), version_base=None):
        found = compose("verl")
    # "what is 0 + 1? box it." after "be brief.", by a tokenizer of characters; a folder that was moved.
    assert found.data.max_prompt_length == len("be brief.what is 0 + 1? box it.")
    assert found.data.train_files == "/moved/train.parquet"
    actor: Any = omega_conf_to_dataclass(found.actor_rollout_ref.actor)
    # 16 prompts in 4 updates: 4 prompts each, of 8 responses.
    assert (actor.ppo_mini_batch_size, actor.ppo_epochs, actor.optim.lr) == (4, 2, 3e-6)
    assert actor.optim.clip_grad == 0.3, "what verl's engine reads"
    assert actor.policy_loss.loss_mode.startswith("policygrain.tepo_v1-") and not actor.use_kl_loss
    rollout = found.actor_rollout_ref.rollout
    assert (rollout.n, rollout.temperature, rollout.response_length) == (8, 0.9, study_of().training.max_tokens)
    algorithm: Any = omega_conf_to_dataclass(found.algorithm)
    assert algorithm.adv_estimator == "grpo" and algorithm.filter_groups.enable
    assert found.trainer.total_training_steps == 40 and found.data.train_batch_size == 16
    # Nothing that verl does not know: every key is one of its own.
    own = yaml.safe_load(
        (Path(sys.modules["verl"].__path__[0]) / "trainer/config/_generated_ppo_trainer.yaml").read_text()
    )
    written = {
        k: v for k, v in yaml.safe_load((out / "verl.yaml").read_text()).items() if k not in ("hydra", "defaults")
    }
    own["actor_rollout_ref"]["actor"]["fsdp_config"]["mixed_precision"] = None  # a field of its class, not in the file
    assert not _unknown(written, own)


def _unknown(written: dict[str, Any], own: dict[str, Any], place: str = "") -> list[str]:
    found = []
    for key, value in written.items():
        if key not in own:
            found.append(f"{place}{key}")
        elif isinstance(value, dict) and isinstance(own[key], dict):
            found += _unknown(value, own[key], f"{place}{key}.")
    return found


def test_a_method_that_reads_prompts_has_verls_worker_that_knows_them() -> None:
    def model(name: str) -> dict[str, Any]:
        study = study_of(name)
        arm = next(iter(run_matrix(study).arms.values()))
        return config(study, arm, 0, 10, 1)["actor_rollout_ref"]["model"]

    assert model("gepo")["external_lib"] == "policygrain.integrations.verl_groups"
    assert "external_lib" not in model("tepo_v1")


def test_a_folder_in_which_verl_may_have_trained_is_not_written_again(chat_start: Path, tmp_path: Path) -> None:
    out = exported(study_of(), tmp_path, chat_start)
    before = (out / "verl.yaml").read_bytes()
    with pytest.raises(UserError, match="out: is not empty"):
        exported(study_of("grpo"), tmp_path, chat_start)
    assert (out / "verl.yaml").read_bytes() == before


def test_training_rows_are_what_the_loop_samples_in_the_order_of_its_minibatches() -> None:
    recorder = Scripted([(False, False)] * 5)
    settings = Training(prompts_per_step=4, group=2, updates_per_batch=2)
    stream = PromptStream(recorder.problems, seed_of("prompts", 3))
    collector = recorder.collector(settings, seed=3, stream=stream)
    rows = training_rows(recorder.problems, settings, 3)
    for step in range(3):
        collector.collect(Clock(), 4 * step)
        order = torch.cat(minibatches(4, 2, 2, seed_of("minibatches", 3, step)))
        exported = [(int(p.problem), s) for p, seeds in itertools.islice(rows, 4) for s in seeds]
        assert exported == [recorder.asked[step][place] for place in order]


def test_what_differs_is_said() -> None:
    said = {}
    for name in ("grpo", "tepo_v1"):
        study = study_of(name)
        (arm,) = run_matrix(study).arms.values()
        said[name] = " ".join(differences(arm.method(study), arm.training(study)))
    assert "not paired" in said["tepo_v1"] and "not paired" not in said["grpo"]


def test_the_advantage_of_a_method_is_that_of_verl() -> None:
    for name, std in (("grpo", True), ("dr_grpo", False)):
        study = study_of(name)
        (arm,) = run_matrix(study).arms.values()
        assert config(study, arm, 0, 100, 1)["algorithm"]["norm_adv_by_std_in_grpo"] is std


def test_the_command_writes_the_run_that_train_reads_back(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {**SMALL, "training": {**SMALL["training"], "trainer": "verl"}}
    config, run = write_study(tmp_path / "study.yaml", content), RunFolder(tmp_path / "run")
    arguments = ["--config", str(config), "--run-dir", str(run.path), "--results", str(made[0].parent)]
    assert main(["export", "verl", *arguments]) == 0
    assert "python -m verl.trainer.main_ppo" in capsys.readouterr().out
    assert {path.name for path in run.verl.iterdir()} >= {"verl.yaml", "train.parquet", "reward.py"}
    assert main(["export", "verl", *arguments]) == 2, "verl may have trained in it"
    assert "run/verl: is not empty" in capsys.readouterr().err
    shutil.copytree(made[1], final_model(run.verl, SMALL["training"]["steps"]))
    rows = [{"step": step, "data": {"val-core/small/reward/mean@1": 0.5}} for step in range(5)]
    write_lines(run.verl / "metrics.jsonl", rows)
    study = small_study(training={"trainer": "verl"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("policygrain.trainers.run.check_arm", lambda *_: None)  # verl may not be installed here
        train_small(study, run.path, *made)
    assert run_summary(run).environment.engine == "verl" and not list(run.path.glob("superseded-*"))


def test_a_refused_export_leaves_no_folder(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for training, message in (
        ({"trainer": "verl", "off_policy_steps": 1}, "verl lacks features"),
        ({}, "grpo is trained by policygrain; set it to verl"),
    ):
        config = write_study(tmp_path / "study.yaml", {**SMALL, "training": {**SMALL["training"], **training}})
        assert main(["export", "verl", "--config", str(config), "--run-dir", str(tmp_path / "run")]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


# A preset that the study changes, a method that only the study has, and a preset.
OF_STUDIES: dict[str, dict[str, Any]] = {
    "dapo": {"clip": {"low": 0.1, "high": 0.14}, "sampler": {"overlong_buffer": 0.0}},
    "narrow": {"base": "gspo", "clip": {"low": 0.003, "high": 0.004}, "aggregation": "token_mean"},
    "tepo_v1": {},
}


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """What the integration registers in a worker of verl: name → loss. Without verl, its registry is a mapping."""
    try:
        from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as registry

        from policygrain.integrations import verl as integration
    except ImportError:
        registry = {}
        for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.core_algos"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        registering = sys.modules["verl.trainer.ppo.core_algos"]
        registering.POLICY_LOSS_REGISTRY = {}
        registering.register_policy_loss = lambda name: functools.partial(registry.__setitem__, name)
        spec = importlib.util.find_spec("policygrain.integrations.verl")
        assert spec and spec.loader
        integration = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(integration)

    def register() -> dict[str, Any]:
        integration.register()
        return dict(registry)

    return register


@pytest.mark.parametrize("name", OF_STUDIES)
def test_the_loss_in_verl_is_the_studys_bit_for_bit(
    name: str, chat_start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, register: Callable[[], dict[str, Any]]
) -> None:
    study = study_of(name, OF_STUDIES)
    out = exported(study, tmp_path, chat_start)
    mode = yaml.safe_load((out / "verl.yaml").read_text())["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"]
    assert mode not in register(), "a worker without the folder must not train with a preset of the same name"
    monkeypatch.setenv(EXPORTED, str(out.rename(tmp_path / "moved")))
    loss = register()[mode]
    (arm,) = run_matrix(study).arms.values()
    wanted = arm.method(study)
    fields = {key: value for key, value in random_fields([7, 3, 1, 5], 0, 0.3).items() if "entropy" not in key}
    known = {key: value for key, value in fields.items() if key != "max_length"}
    ours = known | {"log_probs": fields["log_probs"].clone().requires_grad_()}
    expected = wanted.loss(TokenBatch(**ours)).loss
    theirs = fields["log_probs"].clone().requires_grad_()
    advantages, mask = fields["advantages"].unsqueeze(1).expand_as(theirs), fields["mask"].bool()
    found, _ = loss(fields["old_log_probs"], theirs, advantages, mask)
    gradients = (torch.autograd.grad(found, theirs)[0], torch.autograd.grad(expected, ours["log_probs"])[0])
    assert torch.equal(found, expected) and torch.equal(*gradients)
    if OF_STUDIES[name]:  # which the preset's clip would not give
        preset = method("dapo" if name == "dapo" else "gspo")
        assert not torch.equal(preset.loss(TokenBatch(**known)).loss, expected)
