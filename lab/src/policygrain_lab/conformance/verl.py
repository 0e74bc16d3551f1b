"""A run of verl compared with a preset: each optimizer step of its actor, read from the weights."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from policygrain.errors import UserError
from policygrain.files import json_lines
from policygrain.objective import Method, method

CHECK = "POLICYGRAIN_CHECK"  # variable in the environment of verl's processes: the folder with these two files
OBJECTIVE, STEPS = "objective.json", "steps.jsonl"
ACTOR = "policygrain_lab.conformance.verl_actor"
EXTERNAL_LIB = "actor_rollout_ref.model.external_lib="
OPTIM, FSDP = "actor_rollout_ref.actor.optim", "actor_rollout_ref.actor.fsdp_config"
# With these settings a step is w − learning_rate · gradient in float32, and nothing else. A second epoch is off-policy.
PLAIN_SGD = (
    f"{OPTIM}.optimizer=SGD",
    f"{OPTIM}.optimizer_impl=torch.optim",
    f"{OPTIM}.override_optimizer_config=null",
    f"{OPTIM}.weight_decay=0",
    f"{OPTIM}.clip_grad=1e30",
    f"{OPTIM}.lr_scheduler_type=constant",
    f"{OPTIM}.lr_warmup_steps=0",
    f"{OPTIM}.lr_warmup_steps_ratio=0",
    f"{FSDP}.model_dtype=fp32",
    f"++{FSDP}.mixed_precision.param_dtype=float32",
    f"++{FSDP}.mixed_precision.reduce_dtype=float32",
    "actor_rollout_ref.actor.ppo_epochs=2",
)
SHORT = (
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
)
LAST_LINES = 30  # of verl's output, in the message of a failed run


def assert_verl(
    arguments: Sequence[str],
    objective: str | Method,
    *,
    learning_rate: float,
    batches: int = 2,
    rtol: float = 1e-2,
    python: str = sys.executable,
) -> None:
    """Train with `python -m verl.trainer.main_ppo ARGUMENTS` and check each optimizer step of its actor.

    The arguments are those of a run, to which `PLAIN_SGD`, ``learning_rate`` and the number of ``batches`` are added.
    AssertionError at the first step that is not w − learning_rate · (the gradient of the preset). UserError if verl
    fails, or if no step has a gradient and ratios other than 1. ``python`` is the interpreter of verl's environment.
    """
    __tracebackhide__ = True
    chosen = method(objective) if isinstance(objective, str) else objective
    libraries = [argument.removeprefix(EXTERNAL_LIB) for argument in arguments if argument.startswith(EXTERNAL_LIB)]
    command = [python, "-m", "verl.trainer.main_ppo", *arguments, *PLAIN_SGD, *SHORT]
    command += [f"{OPTIM}.lr={learning_rate}", f"trainer.total_training_steps={batches}"]
    command += [f"{EXTERNAL_LIB}[{','.join([*libraries[-1:], ACTOR])}]"]
    with tempfile.TemporaryDirectory() as folder:
        command += [f"++ray_kwargs.ray_init.runtime_env.env_vars.{CHECK}={folder}"]
        checked = {"name": chosen.name, "method": chosen.data(), "rtol": rtol}
        Path(folder, OBJECTIVE).write_text(json.dumps(checked), encoding="utf-8")
        output = Path(folder, "verl.log")
        with output.open("wb") as file:
            ended = subprocess.run(command, stdout=file, stderr=file, check=False)
        seen = [row for _, row in json_lines(Path(folder, STEPS))] if Path(folder, STEPS).exists() else []
        if problem := next((step["problem"] for step in seen if "problem" in step), None):
            raise AssertionError(problem)
        if ended.returncode or not seen:
            last = "\n".join(output.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise UserError(
                f"verl ended with exit code {ended.returncode} after {len(seen)} steps; the last lines:\n{last}"
            )
    if all(step["on_policy"] for step in seen):
        raise UserError(
            f"in all of {len(seen)} steps the gradient is 0 or all ratios are 1, so ratio and clip were not checked: "
            "take another learning_rate, or more batches if all rewards were equal."
        )
