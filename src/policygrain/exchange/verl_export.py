"""An arm of a study as a run of verl 0.9: configuration, problems and reward function (docs/integrations/verl.md).

`verl_import.py` reads the run back.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import yaml

from .. import digests
from ..errors import UserError
from ..files import atomic_text, new_folder
from ..integrations.options import EXPORTED, METHODS_FILE, VERL_LACKS, lacking
from ..model.loading import load_tokenizer
from ..objective import Method
from ..results.layout import DataFolder
from ..results.schema import ExportRecord, write_record
from ..study import Study
from ..study.runs import Arm
from ..study.schema import Training
from ..tasks.problem import Problem, read_problems
from ..tasks.prompts import PromptRenderer
from ..tasks.sources import prepare
from ..train.run import run_config

CONFIG, REWARD = "verl", "reward.py"
RECORD, ROLLOUTS, VALIDATIONS = "export.json", "rollouts", "validations"
# The trainer's reward: PolicyGrain's grader, with the study's grader and extraction.
REWARD_SOURCE = '''"""verl's reward: 1 if PolicyGrain's grader finds the answer correct, else 0."""

from policygrain.grading import open_grader

_grader = open_grader({grader!r}, {extraction!r}).__enter__()


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Called by verl for each response."""
    return float(_grader.grade([ground_truth], [solution_str])[0] == "correct")
'''


def export(study: Study, arm: Arm, seed: int, data: DataFolder | None, out: Path, gpus: int) -> list[str]:
    """Write configuration, method, problems and reward to the empty folder ``out``; returns differences in verl.

    ``data`` is the folder of `policygrain prepare`; with None they are prepared in ``out``. UserError, which leaves no
    folder, if verl cannot train the arm.
    """
    with new_folder(out) as folder:
        if data is None:
            data = DataFolder(folder / "data")
            prepare(study, data)
        return _write(study, arm, seed, data, folder, gpus)


def _write(study: Study, arm: Arm, seed: int, data: DataFolder, out: Path, gpus: int) -> list[str]:
    settings, method = arm.training(study), arm.method(study)
    problems = {"train": read_problems(data.train), "validation": read_problems(data.validation)}
    _check(study, settings, method, problems["train"])
    out.mkdir(parents=True, exist_ok=True)
    for name, listed in problems.items():
        _write_parquet(study, listed, out / f"{name}.parquet")
    atomic_text(out / REWARD, REWARD_SOURCE.format(grader=study.grader, extraction=study.extraction))
    renderer = PromptRenderer(load_tokenizer(study.model.start, study.model.revision), study.prompt)
    longest = max(len(renderer.ids(problem.problem)) for listed in problems.values() for problem in listed)
    text = yaml.safe_dump(config(study, arm, seed, longest, gpus), sort_keys=False)
    atomic_text(out / f"{CONFIG}.yaml", text)
    atomic_text(out / METHODS_FILE, yaml.safe_dump({registered_name(method): method.data()}, sort_keys=False))
    files = [f"{CONFIG}.yaml", METHODS_FILE, REWARD, *(f"{name}.parquet" for name in problems)]
    record = ExportRecord(
        engine="verl",
        config=run_config(study, arm, seed, study.model.start, data),
        grader=study.grader,
        extraction=study.extraction,
        files={name: digests.of_file(out / name) for name in files},
    )
    write_record(out / RECORD, record)
    return differences(method, settings)


def registered_name(method: Method) -> str:
    """The name of the study's method in verl, with a digest: a preset or another study's method may have the same name.

    Without the file of methods, or with that of another arm, verl knows no loss of this name and does not train.
    """
    return f"{method.name}-{digests.of_json(method.data())[:8]}"


def config(study: Study, arm: Arm, seed: int, longest: int, gpus: int) -> dict[str, Any]:
    """verl's configuration: changes to the defaults of its `ppo_trainer`.

    Paths begin with the variable `EXPORTED`, so that the folder can be moved. ``longest``: of the prompts, in tokens.
    """
    settings, method = arm.training(study), arm.method(study)
    out = f"${{oc.env:{EXPORTED}}}"
    std = method.advantage.name == "grpo"
    return {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "data": {
            "train_files": f"{out}/train.parquet",
            "val_files": f"{out}/validation.parquet",
            "train_batch_size": settings.prompts_per_step,
            "max_prompt_length": longest,
            "max_response_length": settings.max_tokens,
            "seed": seed,
        },
        "actor_rollout_ref": {
            "model": {"path": _model_path(study.model.start)},
            "actor": {
                "policy_loss": {"loss_mode": f"policygrain.{registered_name(method)}"},
                "ppo_mini_batch_size": settings.prompts_per_step // settings.updates_per_batch,
                "ppo_epochs": settings.epochs,
                "grad_clip": settings.max_grad_norm,
                "use_kl_loss": False,
                "entropy_coeff": 0,
                "use_dynamic_bsz": True,
                "ppo_max_token_len_per_gpu": settings.micro_batch_tokens,
                "checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]},
                "optim": {
                    "lr": settings.learning_rate,
                    # verl's schedule moves once per batch.
                    "lr_warmup_steps": math.ceil(settings.warmup_updates / settings.updates_of_batch),
                    "weight_decay": settings.weight_decay,
                    "betas": list(settings.betas),
                },
            },
            "rollout": {
                "name": "vllm",
                "n": settings.group,
                "temperature": settings.temperature,
                "top_p": 1.0,
                "val_kwargs": {"n": 1, "do_sample": True, "temperature": settings.temperature, "top_p": 1.0},
            },
        },
        "algorithm": {
            "adv_estimator": "grpo",
            "norm_adv_by_std_in_grpo": std,
            # verl samples until a batch is full: it ignores `max_num_gen_batches`.
            "filter_groups": {"enable": method.sampler.dynamic, "metric": "reward"},
        },
        "reward": {"custom_reward_function": {"path": f"{out}/{REWARD}", "name": "compute_score"}},
        "trainer": {
            "total_training_steps": settings.steps,
            "test_freq": settings.validate_every,
            "save_freq": settings.checkpoint_every,
            "project_name": study.name,
            "experiment_name": f"{arm.name}-seed{seed}",
            "logger": ["console", "file"],
            "rollout_data_dir": f"{out}/{ROLLOUTS}",
            "validation_data_dir": f"{out}/{VALIDATIONS}",
            "default_local_dir": f"{out}/checkpoints",
            "max_actor_ckpt_to_keep": 2,
            "n_gpus_per_node": gpus,
        },
    }


def _model_path(start: str) -> str:
    return str(Path(start).resolve()) if Path(start).is_dir() else start


def differences(method: Method, settings: Training) -> list[str]:
    """Differences of the run in verl from the same arm here, a sentence each."""
    notes = [
        "prompts are shuffled and responses sampled with verl's seeds, so runs of the two engines are not paired",
        "gradients are clipped and averaged by verl's FSDP, and log-probabilities are computed in bfloat16",
    ]
    if settings.epochs > 1:
        notes.append("each pass over a batch has the same minibatches")
    if settings.warmup_updates:
        notes.append("the learning rate grows once per batch in its warmup, and not with each optimizer step")
    if method.sampler.overlong_buffer:
        notes.append("the overlong punishment of the method's sampler is not applied (verl: the reward manager `dapo`)")
    if method.sampler.dynamic:
        notes.append("groups are sampled until a batch is full, however many that takes (sampler.max_batches)")
    if method.sampler.mask_truncated:
        notes.append("truncated responses are not left out of the loss")
    if any(getattr(part, "mask", "all") != "all" for part in method.penalties):
        notes.append("the mask by entropies uses covariances, unless verl is changed as docs/integrations/verl.md says")
    return notes


def _check(study: Study, settings: Training, method: Method, train: list[Problem]) -> None:
    problems = lacking(method, "verl", VERL_LACKS)
    if method.anchor != "old":
        problems.append("anchor: rollout: verl gives no log-probabilities of the engine to a loss.")
    if not study.prompt.chat:
        problems.append("verl always applies the chat template; the study has prompt.chat: false.")
    if settings.prompts_per_step % settings.updates_per_batch:
        problems.append(
            f"training.updates_per_batch: {settings.updates_per_batch} updates of {settings.prompts_per_step} prompts; "
            "verl divides a batch by prompts, so the number of prompts must be a multiple."
        )
    if settings.ahead:
        problems.append("training.ahead: verl's own asynchronous trainers have other keys; set it to 0.")
    if settings.sampler_bits is not None:
        problems.append("training.sampler_bits: verl's engines quantize by their own keys; leave it out.")
    if method.advantage.name not in ("grpo", "dr_grpo"):
        problems.append(f"its advantage {method.advantage.name!r} is none of verl's; verl has grpo and dr_grpo.")
    if any(problem.tests for problem in train):
        problems.append("its training problems are programs, which verl's reward function here does not run.")
    if study.model.start == "tiny":
        problems.append("model.start: verl needs the folder or hub name of a model.")
    if study.model.lora is not None:
        problems.append("model.lora: verl's own keys for adapters are not written.")
    if settings.old_log_probs != "trainer":
        problems.append("training.old_log_probs: verl's actor computes them.")
    if settings.shuffle_rewards or settings.sampling_seed:
        problems.append("the arm is a control (training.shuffle_rewards, training.sampling_seed), which verl has not.")
    if problems:
        raise UserError(f"{method.name}: " + " ".join(problems))


def _write_parquet(study: Study, problems: list[Problem], path: Path) -> None:
    """Write the problems in the format of verl's datasets."""
    import pandas as pd

    rows = []
    for number, problem in enumerate(problems):
        text = study.prompt.template.replace("{problem}", problem.problem)
        messages = [{"role": "system", "content": study.prompt.system}, {"role": "user", "content": text}]
        rows.append(
            {
                "data_source": study.name,
                "prompt": messages,
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": problem.answer},
                "extra_info": {"index": number, "id": problem.id},
            }
        )
    temporary = path.with_suffix(".parquet.tmp")
    pd.DataFrame(rows).to_parquet(temporary)
    temporary.replace(path)


def describe(out: Path, notes: list[str]) -> str:
    """Commands that start the run, and its differences."""
    return "\n".join(
        [
            f"export {EXPORTED}={shlex.quote(str(out.resolve()))}",
            f"VERL_FILE_LOGGER_PATH=${EXPORTED}/metrics.jsonl \\",
            f"  python -m verl.trainer.main_ppo --config-path ${EXPORTED} --config-name {CONFIG}",
            *(f"note: {s}." for s in notes),
        ]
    )
