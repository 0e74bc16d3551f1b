"""verl's environment, and its configuration for an arm of a study: changes to the defaults of its `ppo_trainer`."""

from __future__ import annotations

import functools
import math
import os
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import digests
from ..errors import UserError
from ..integrations.options import EXPORTED, OF_VERL_GROUPS, VERL_GROUPS, VERL_PAIRED
from ..provenance import PACKAGE

if TYPE_CHECKING:
    from ..objective import Method
    from ..study import Study
    from ..study.runs import Arm

# Environment variable with the interpreter of verl's environment (default: that of `make setup-verl`).
PYTHON = "POLICYGRAIN_VERL_PYTHON"
CONFIG, REWARD = "verl", "reward.py"
AGENT, AGENT_LOOP = "agent.yaml", {"name": "seeded", "_target_": f"{VERL_PAIRED}.SeededAgentLoop"}
RECORD, ROLLOUTS, VALIDATIONS = "export.json", "rollouts", "validations"
# verl always applies a chat template; without `prompt.chat` this one concatenates the messages.
TEMPLATE, PLAIN = "custom_chat_template", "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def registered_name(method: Method) -> str:
    """The name of the study's method in verl, with a digest: a preset or another study's method may have the same name.

    verl stops if the file of methods is missing or is that of another arm, because it then has no loss of this name.
    """
    return f"{method.name}-{digests.of_json(method.data())[:8]}"


def config(study: Study, arm: Arm, seed: int, longest: int, gpus: int) -> dict[str, Any]:
    """verl's configuration: changes to the defaults of its `ppo_trainer`.

    Paths begin with the variable `EXPORTED`, so that the folder can be moved. ``longest``: of the prompts, in tokens.
    """
    settings, method = arm.training(study), arm.method(study)
    out = f"${{oc.env:{EXPORTED}}}"
    std = method.advantage.name == "grpo"
    start = study.model.start
    compute = "bfloat16" if settings.compute == "auto" else settings.compute  # verl computes on GPUs
    path = str(Path(start).resolve()) if Path(start).is_dir() else start
    model = {"path": path, **({} if study.prompt.chat else {TEMPLATE: PLAIN})}
    if method.needs & set(OF_VERL_GROUPS):
        model["external_lib"] = VERL_GROUPS
    # Where dynamic sampling drops groups, verl's own replay buffer samples others in their place.
    ordered = {"path": f"pkg://{VERL_PAIRED}", "name": "OrderedReplayBuffer"}
    sampler = {} if method.sampler.dynamic else {"v1": {"sampler": {"custom_sampler": ordered}}}
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
            "shuffle": False,  # the file is in the order of the run
        },
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "policy_loss": {"loss_mode": f"policygrain.{registered_name(method)}"},
                "ppo_mini_batch_size": settings.prompts_per_step // settings.updates_per_batch,
                "ppo_epochs": settings.epochs,
                "use_kl_loss": False,
                "entropy_coeff": 0,
                "use_dynamic_bsz": True,
                "ppo_max_token_len_per_gpu": settings.micro_batch_tokens,
                "fsdp_config": {"mixed_precision": {"param_dtype": compute, "reduce_dtype": "float32"}},
                "checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]},
                "optim": {
                    "lr": settings.learning_rate,
                    # verl updates the learning rate once per batch.
                    "lr_warmup_steps": math.ceil(settings.warmup_updates / settings.updates_of_batch),
                    "weight_decay": settings.weight_decay,
                    "clip_grad": settings.max_grad_norm,
                    "betas": list(settings.betas),
                },
            },
            "rollout": {
                "name": "vllm",
                "n": settings.group,
                "dtype": compute,
                "temperature": settings.temperature,
                "top_p": 1.0,
                "agent": {"agent_loop_config_path": f"{out}/{AGENT}", "default_agent_loop": AGENT_LOOP["name"]},
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
            **sampler,
        },
    }


# Keys of verl's configuration that an export writes and that a study may change: they change no result.
RESOURCES = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.name",
    "trainer.n_gpus_per_node",
)


def with_changes(written: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``written`` with the ``changes`` of `training.verl`. UserError for a key that the study decides."""
    for key in _leaves(changes):
        decided = [k for k in _leaves(written) if k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.")]
        if decided and key not in RESOURCES:
            raise UserError(f"training.verl.{key}: the study decides this key of verl; leave it out.")
    return _merged(written, changes)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings merged key by key, also where their `name` differs (`rollout.name`)."""
    both = {
        key: _merged(below[key], above[key])
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return {**below, **above, **both}


def _leaves(section: dict[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key, value in section.items():
        name = f"{prefix}{key}"
        keys += _leaves(value, f"{name}.") if isinstance(value, dict) and value else [name]
    return keys


def verl_python() -> Path:
    """The interpreter of verl's environment. PackageNotFoundError if there is none."""
    named = os.environ.get(PYTHON)
    places = [Path(named)] if named else [Path(".venv-verl/bin/python"), PACKAGE.parents[1] / ".venv-verl/bin/python"]
    for place in places:
        if place.exists():
            return place.absolute()
    raise PackageNotFoundError("verl")


def verl_version() -> str:
    """The version of verl in its environment. PackageNotFoundError if verl is not installed there."""
    return _version_in(verl_python())


@functools.cache
def _version_in(python: Path) -> str:
    command = [str(python), "-c", "from importlib.metadata import version; print(version('verl'))"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise PackageNotFoundError("verl") from error
