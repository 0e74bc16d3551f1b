"""What a trainer lacks is refused before anything is spent; a study that asks for nothing special is not."""

import sys
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.study import Study
from policygrain.study.runs import Arm, run_matrix
from policygrain.trainers import check, verl_settings
from policygrain.trainers.check import TRAINERS, check_trainers, lacking

from ..support.small import small_study, train_small

# Feature → a method on top of GRPO, and other sections, that need it. verl lacks all of them.
ASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "parts by turns": ({"base": "turn_ratio"}, {}),
    "the initial policy's log-probabilities": ({"penalties": [{"name": "kl"}]}, {}),
    "an entropy with gradient": ({"penalties": [{"name": "entropy_bonus"}]}, {}),
    "multi-token prediction heads": ({"base": "mpo_heads"}, {}),
    "the segment of each token": ({"ratio": {"name": "block", "layout": "segments", "weights": "uniform"}}, {}),
    "the age of each response": ({"base": "a3po"}, {}),
    "statistics of the whole step": ({"base": "clip_cov"}, {}),
    "a mask by entropies": ({"base": "tepo"}, {}),
    "an overlong penalty": ({"base": "dapo"}, {}),
    "truncated responses left out": ({"sampler": {"mask_truncated": True}}, {}),
    "rollout correction": ({"base": "minirl"}, {}),
    "a ratio to the engine": ({"base": "bypass"}, {}),
    "an advantage other than": ({"advantage": "rloo"}, {}),
    "older rollouts": ({}, {"training": {"off_policy_steps": 1}}),
    "the engine's log-probabilities": ({}, {"training": {"old_log_probs": "engine"}}),
    "adapters": ({}, {"model": {"lora": {"rank": 4}}}),
    "updates that do not divide": ({}, {"training": {"prompts_per_step": 5}}),
}
HAVE = {"parts by turns": (), "multi-token prediction heads": ("policygrain",)}  # the trainers, where not BUT_VERL
BUT_VERL = ("policygrain", "trl")


def study_of(trainer: str, method: dict[str, Any], sections: dict[str, Any], **training: Any) -> Study:
    return small_study(
        methods={"mine": {"base": "grpo", **method}},
        experiments={"headline": {"methods": ["mine"]}},
        **{**sections, "training": {"trainer": trainer, **sections.get("training", {}), **training}},
    )


def arm_of(study: Study) -> Arm:
    (arm,) = run_matrix(study).arms.values()
    return arm


def plain(trainer: str, **training: Any) -> Study:
    return study_of(trainer, {}, {}, **training)


def lacks(trainer: str, study: Study) -> list[str]:
    return lacking(trainer, study, arm_of(study))


@pytest.mark.parametrize("feature", ASKS)
def test_a_trainer_refuses_what_it_lacks(feature):
    for trainer in TRAINERS:
        found = [text for text in lacks(trainer, study_of(trainer, *ASKS[feature])) if text.startswith(feature)]
        assert bool(found) == (trainer not in HAVE.get(feature, BUT_VERL)), trainer
    assert lacks("verl", plain("verl")) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"ratio": {"name": "block", "layout": "turns", "weights": "joint"}},
        {"aggregation": "turn_mean_token_mean"},
        {"sampler": {"correction_cap": 2.0, "correction_grain": "turn"}},
        {"sampler": {"rejection_high": 2.0, "rejection_grain": "turn"}},
    ],
)
def test_turns_are_refused_by_every_part_that_reads_them(parts):
    with pytest.raises(UserError, match=r"that mine needs: parts by turns .*Leave them out"):
        check_trainers(study_of("policygrain", parts, {}))


def test_the_message_names_a_trainer_that_has_all():
    heads = study_of("verl", {"base": "mpo_heads"}, {"training": {"off_policy_steps": 1}})
    with pytest.raises(UserError, match=r"multi-token prediction heads.*; older rollouts.*Set it to policygrain"):
        check_trainers(heads)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"trl": {"learning_rate": 1.0}}, r"training\.trl\.learning_rate: is not passed on"),
        ({"trl": {"epsilon": 0.1}}, r"training\.trl\.epsilon: is not passed on"),
        ({"trl": {"vllm_mode": "server"}}, r"training\.trl\.vllm_mode: the study's engine samples"),
        ({"trl": {"fdsp": "full_shard"}}, r"training\.trl\.fdsp: is not passed on.* 'fsdp'"),
        ({"trl": {"deepspeed": {"zero_optimization": {"stage": 3}}}}, "ZeRO stage 3"),
        ({"trl": {"fsdp": True, "fsdp_config": {"version": 1}}}, "the engine cannot read weights of FSDP1"),
        ({"trainer": "policygrain", "trl": {"fsdp": True}}, "only trainer: trl reads it"),
        ({"trainer": "verl", "verl": {"trainer": {"save_freq": 1}}}, r"training\.verl\.trainer\.save_freq: the study"),
        ({"trainer": "verl", "verl": {"trainer": {"nnodes": 2}}}, r"training\.verl\.trainer\.nnodes: the SLURM job"),
        ({"trainer": "verl", "verl": {"data": {"seed": {"a": 1}}}}, r"training\.verl\.data\.seed\.a: the study"),
    ],
)
def test_keys_that_the_study_decides_or_that_cannot_work_are_refused_before_anything_is_spent(
    training, message, made, tmp_path, monkeypatch
):
    monkeypatch.setattr(verl_settings, "verl_version", lambda _: "0.9.1")
    monkeypatch.setenv(verl_settings.PYTHON, sys.executable)
    refused = plain(**({"trainer": "trl"} | training))
    with pytest.raises(UserError, match=message):
        check_trainers(refused)
    with pytest.raises(UserError, match=message):
        train_small(refused, tmp_path / "run", *made)
    assert not (tmp_path / "run").exists()


def test_other_keys_are_passed_on(monkeypatch):
    monkeypatch.setattr(verl_settings, "verl_version", lambda _: "0.9.1")
    monkeypatch.setenv(verl_settings.PYTHON, sys.executable)
    check_trainers(plain("trl", trl={"fsdp": True, "ddp_timeout": 60, "dataloader_num_workers": 0}))
    check_trainers(plain("verl", verl={"trainer": {"n_gpus_per_node": 4}}))


def test_the_loop_is_one_process(made, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"training\.trainer: policygrain is started as one process.* Set it to trl"):
        train_small(small_study(), tmp_path / "run", *made)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("trainer", "version", "message"),
    [
        ("trl", "1.3.0", "trl 1.3.0 is installed.*run `make setup`"),
        ("trl", None, "is not installed.*run `make setup`"),
        ("verl", None, "verl is not installed; run `make setup-verl`"),
    ],
)
def test_a_trainer_that_is_missing_or_of_another_release_is_named(trainer, version, message, monkeypatch):
    def installed(name: str) -> str:
        if version is None:
            raise check.PackageNotFoundError(name)
        return version

    monkeypatch.setenv(verl_settings.PYTHON, "nowhere")
    monkeypatch.setattr(check, "version", installed)
    with pytest.raises(UserError, match=rf"training\.trainer: .*{message}"):
        check_trainers(plain(trainer))
