"""verl's settings for an arm of a study, as changes to the defaults of its `ppo_trainer`; and verl's environment."""

from __future__ import annotations

import functools
import math
import os
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .. import digests
from ..errors import UserError
from ..integrations.options import VERL_PAIRED
from ..provenance import PACKAGE
from ..text import flat

if TYPE_CHECKING:
    from ..objective import Method
    from ..study import Study
    from ..study.runs import Arm

# Environment variable with the interpreter of verl's environment (default: that of `make setup-verl`).
PYTHON = "POLICYGRAIN_VERL_PYTHON"
VERL: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("verl.yaml").read_text())
# verl always applies a chat template; without `prompt.chat` this one concatenates the messages.
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def registered_name(method: Method) -> str:
    """The name of the study's method in verl, with a digest: a preset or another study's method may have the same name.

    verl stops if the file of methods is missing or is that of another arm, because it then has no loss of this name.
    """
    return f"{method.name}-{digests.of_json(method.data())[:8]}"


def of_study(study: Study, arm: Arm, seed: int, start: str, longest: int = 1, gpus: int = 1) -> dict[str, Any]:
    """The settings of verl that follow from a study, by dotted key.

    ``start``: folder or hub name of the initial model; ``longest``: of the prompts, in tokens.
    """
    settings, method = arm.training, arm.method
    given = settings.model_dump(mode="json")
    compute = "bfloat16" if settings.compute == "auto" else settings.compute  # verl computes on GPUs
    model, actor, rollout = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout"))
    keys = {
        **VERL["always"],
        **{theirs: given[ours] for theirs, ours in VERL["of_study"].items()},
        "data.max_prompt_length": longest,
        "data.seed": seed,
        f"{model}.path": str(Path(start).resolve()) if Path(start).is_dir() else start,
        f"{actor}.policy_loss.loss_mode": f"policygrain.{registered_name(method)}",
        f"{actor}.ppo_mini_batch_size": settings.prompts_per_step // settings.updates_per_batch,
        f"{actor}.fsdp_config.mixed_precision.param_dtype": compute,
        # verl updates the learning rate once per batch.
        f"{actor}.optim.lr_warmup_steps": math.ceil(settings.warmup_updates / settings.updates_of_batch),
        f"{rollout}.dtype": compute,
        "algorithm.norm_adv_by_std_in_grpo": method.advantage.name == "grpo",
        # verl samples until a batch is full: it ignores `max_num_gen_batches`.
        "algorithm.filter_groups.enable": method.sampler.dynamic,
        "trainer.project_name": study.name,
        "trainer.experiment_name": f"{arm.name}-seed{seed}",
        "trainer.n_gpus_per_node": gpus,
    }
    if not study.prompt.chat:
        keys[f"{model}.custom_chat_template"] = PLAIN
    # Where dynamic sampling drops groups, verl's own replay buffer samples others in their place.
    if not method.sampler.dynamic:
        ordered = {"path": f"pkg://{VERL_PAIRED}", "name": "OrderedReplayBuffer"}
        keys |= flat(ordered, "trainer.v1.sampler.custom_sampler")
    return keys


def with_changes(written: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``written`` with the nested ``changes`` of `training.verl`. UserError for a key that the study decides."""
    own = flat(changes)
    for key in own:
        decided = any(k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.") for k in written)
        if decided and key not in VERL["resources"]:
            raise UserError(f"training.verl.{key}: the study decides this key of verl; leave it out.")
    return written | own


def check_own(study: Study, arm: Arm) -> None:
    """UserError for a key of `training.verl` that the study decides, and for several nodes."""
    changes = arm.training.verl
    with_changes(of_study(study, arm, 0, study.model.start), changes)
    if changes.get("trainer", {}).get("nnodes", 1) != 1:
        raise UserError(
            "training.verl.trainer.nnodes: a run is started on one node; leave it out. Your own `ray` and verl on "
            "several nodes can be started by trainer: command (docs/your-script.md)."
        )


def nested(keys: dict[str, Any]) -> dict[str, Any]:
    """Mappings in mappings, from dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *parents, last = key.split(".")
        functools.reduce(lambda place, parent: place.setdefault(parent, {}), parents, tree)[last] = value
    return tree


def verl_python() -> Path:
    """The interpreter of verl's environment. PackageNotFoundError if there is none."""
    named = os.environ.get(PYTHON)
    places = [Path(named)] if named else [Path(".venv-verl/bin/python"), PACKAGE.parents[1] / ".venv-verl/bin/python"]
    for place in places:
        if place.exists():
            return place.absolute()
    raise PackageNotFoundError("verl")


@functools.cache
def verl_version(python: Path) -> str:
    """The version of verl in an environment. PackageNotFoundError if verl is not installed there."""
    command = [str(python), "-c", "from importlib.metadata import version; print(version('verl'))"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise PackageNotFoundError("verl") from error
