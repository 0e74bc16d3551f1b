"""An arm of a study as verl's configuration, read by verl's own classes (`make test-peers`)."""

import importlib
import itertools
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from policygrain.clock import Clock
from policygrain.integrations.options import EXPORTED
from policygrain.objective import Method
from policygrain.paths import DataFolder
from policygrain.provenance import seed_of
from policygrain.study import Study
from policygrain.study.comparable import different_parts
from policygrain.study.schema import Training
from policygrain.text import flat
from policygrain.train.rollouts import PromptStream
from policygrain.train.update import minibatches
from policygrain.trainers.verl_export import config, differences, export, training_rows

from ..support.files import load_script, write_lines
from ..support.scripted import Scripted
from ..support.small import small_study
from .test_check import arm_of

PROBLEMS = [{"id": str(i), "problem": f"what is {i} + 1?", "answer": str(i + 1)} for i in range(4)]


def study_of(method: str = "tepo_v1", methods: dict[str, Any] | None = None, **training: Any) -> Study:
    settings = {"prompts_per_step": 16, "group": 8, "updates_per_batch": 4, "steps": 40, "temperature": 0.9} | training
    prompt = {"template": "{problem} box it.", "chat": True, "system": "be brief."}
    experiments = {"headline": {"methods": [method]}}
    return small_study(training=settings, prompt=prompt, experiments=experiments, methods=methods or {})


def exported(study: Study, folder: Path, start: Path) -> Path:
    for name in ("train", "validation"):
        write_lines(folder / "data" / f"{name}.jsonl", PROBLEMS)
    study = study.model_copy(update={"model": study.model.model_copy(update={"start": str(start)})})
    export(study, arm_of(study), 3, DataFolder(folder / "data"), folder / "out", gpus=2)
    return folder / "out"


def test_settings_are_in_verl_s_terms_and_what_differs_is_said():
    """2 × 4 optimizer steps per batch; verl raises the learning rate once per batch, 3 times for 20 optimizer steps."""

    def written(study: Study) -> tuple[dict[str, Any], str]:
        arm = arm_of(study)
        said = " ".join(differences(arm.method(study), arm.training(study)))
        return config(study, arm, seed=0, longest=9, gpus=1), said

    found, said = written(study_of(epochs=2, warmup_updates=20))
    actor, model = found["actor_rollout_ref"]["actor"], found["actor_rollout_ref"]["model"]
    assert (actor["ppo_epochs"], actor["ppo_mini_batch_size"], actor["optim"]["lr_warmup_steps"]) == (2, 4, 3)
    assert "each pass over" in said and "during warmup" in said and "not paired" in said, "its sampling is dynamic"
    assert found["algorithm"]["norm_adv_by_std_in_grpo"] and "external_lib" not in model
    plain, said = written(study_of("dr_grpo"))
    assert not any(words in said for words in ("pass over", "warmup", "not paired"))
    assert not plain["algorithm"]["norm_adv_by_std_in_grpo"]
    by_prompt = written(study_of("gepo"))[0]["actor_rollout_ref"]["model"]
    assert by_prompt["external_lib"] == "policygrain.integrations.verl_groups", "of which workers know prompts"


def test_the_folder_has_problems_with_messages_and_a_reward_that_grades(chat_start, tmp_path):
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


def test_without_chat_the_prompt_is_the_study_s(made, tmp_path):
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


def test_verl_reads_the_configuration_by_its_own_classes(chat_start, tmp_path, monkeypatch):
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
    # Nothing that verl does not know: every key is one of its own, or below one without keys of its own.
    of_verl = Path(sys.modules["verl"].__path__[0]) / "trainer/config/_generated_ppo_trainer.yaml"
    own, written = (flat(yaml.safe_load(path.read_text())) for path in (of_verl, out / "verl.yaml"))
    known = (*own, "hydra", "defaults", "actor_rollout_ref.actor.fsdp_config.mixed_precision", "trainer.v1.sampler")
    assert not [key for key in written if not any(key == k or key.startswith(f"{k}.") for k in known)]


def test_training_rows_are_what_the_loop_samples_in_the_order_of_its_minibatches():
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


# A preset that the study changes, a method that only the study has, and a preset.
OF_STUDIES: dict[str, dict[str, Any]] = {
    "dapo": {"clip": {"low": 0.1, "high": 0.14}, "sampler": {"overlong_buffer": 0.0}},
    "narrow": {"base": "gspo", "clip": {"low": 0.003, "high": 0.004}, "aggregation": "token_mean"},
    "tepo_v1": {},
}


@pytest.fixture
def registered(monkeypatch):
    """What a worker of verl registers: name of a loss → its method. verl itself need not be installed."""
    registry: dict[str, Method] = {}
    verl: Any = types.ModuleType("verl")
    verl.POLICY_LOSS_REGISTRY = {}
    verl.register_policy_loss = lambda name: lambda loss: registry.__setitem__(name, loss.args[0])
    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.core_algos"):
        monkeypatch.setitem(sys.modules, name, verl)
    monkeypatch.delitem(sys.modules, "policygrain.integrations.verl", raising=False)
    integration = importlib.import_module("policygrain.integrations.verl")
    monkeypatch.delitem(sys.modules, "policygrain.integrations.verl")
    return lambda: integration.register() and registry


@pytest.mark.parametrize("name", OF_STUDIES)
def test_a_worker_of_verl_trains_with_the_method_of_the_study(name, chat_start, tmp_path, monkeypatch, registered):
    study = study_of(name, OF_STUDIES)
    out = exported(study, tmp_path, chat_start)
    mode = yaml.safe_load((out / "verl.yaml").read_text())["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"]
    assert mode not in registered(), "a worker without the folder must not train with a preset of the same name"
    monkeypatch.setenv(EXPORTED, str(out.rename(tmp_path / "moved")))
    assert different_parts(registered()[mode], arm_of(study).method(study)) == []
