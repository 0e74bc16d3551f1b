"""verl as the trainer of a run: the run is written for verl 0.9, trained in verl's own environment, and read back.

On one GPU and without dynamic sampling verl samples and updates as the loop does (`integrations.verl_paired`). verl
saves periodically; a resumed run repeats the steps after the last checkpoint.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from .. import digests
from ..data.problem import Problem, read_problems
from ..data.prompts import PromptRenderer
from ..errors import UserError
from ..files import atomic_text, json_lines, model_folder
from ..integrations.options import EXPORTED, METHODS_FILE, VERL_PAIRED
from ..model.loading import load_tokenizer
from ..objective import Method
from ..paths import DataFolder, RunFolder
from ..provenance import PACKAGE
from ..records import FinalMetrics
from ..study.runs import Arm
from ..study.schema import Study, Training
from ..text import flat, some
from ..train.batch import minibatches_of_step
from ..train.checkpoint import line
from ..train.rollouts import prompt_stream, response_seeds
from ..train.stopping import Stop
from .launch import run_program

# Environment variable with the interpreter of verl's environment (default: that of `make setup-verl`).
PYTHON = "POLICYGRAIN_VERL_PYTHON"
VERL: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("verl.yaml").read_text())
# verl always applies a chat template; without `prompt.chat` this one concatenates the messages.
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
PLUGIN = ("policygrain/", "actor/policygrain/")
ByStep = Mapping[int, Mapping[str, Any]]  # verl's step → its numbers


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """As `train.loop.train`, from verl's newest checkpoint in ``run`` if there is one."""
    folder, settings = run.verl.resolve(), arm.training
    if not final_model(folder, settings.steps).exists():
        if not (torch.cuda.is_available() or "device" in settings.verl.get("trainer", {})):
            raise UserError(
                "training.trainer: verl trains on GPUs, and none is visible here. Request GPUs, or name another device "
                "of verl in training.verl.trainer.device."
            )
        export(study, arm, seed, start, data, folder)
        # A log for each attempt, because verl's logger overwrites its file.
        log = folder / f"metrics{len([*folder.glob('metrics*.jsonl')]) + 1:04d}.jsonl"
        variables = {EXPORTED: str(folder), "VERL_FILE_LOGGER_PATH": str(log)}
        where = ["--config-path", str(folder), "--config-name", "verl"]
        command = [str(verl_python()), "-m", "verl.trainer.main_ppo", *where]
        run_program("verl", command, folder, folder / "verl.log", variables, stop, lambda: _resumes(folder))
    return read_back(folder, settings, arm.method.sampler.dynamic, run)


def final_model(folder: Path, steps: int) -> Path:
    return folder / "checkpoints" / f"global_step_{steps}" / "actor" / "huggingface"


def _resumes(folder: Path) -> str:
    newest = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    if newest.exists():
        return f"the same command resumes from verl's checkpoint of step {newest.read_text().strip()}."
    return "verl had saved no checkpoint, so the same command starts from the beginning (training.checkpoint_every)."


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


# ---- written for verl ------------------------------------------------------------------------------------------------


def check(study: Study, arm: Arm) -> None:
    """UserError for a key of `training.verl` that the study decides, and for several nodes."""
    of_study(study, arm, 0, study.model.start)
    if arm.training.verl.get("trainer", {}).get("nnodes", 1) != 1:
        raise UserError(
            "training.verl.trainer.nnodes: a run is started on one node; leave it out. Your own `ray` and verl on "
            "several nodes can be started by trainer: command (docs/your-script.md)."
        )


def export(study: Study, arm: Arm, seed: int, start: str, data: DataFolder, out: Path) -> None:
    """Write configuration, method, problems and reward into ``out``, the same content in every attempt of a run."""
    settings, method = arm.training, arm.method
    problems, validation = read_problems(data.train), read_problems(data.validation)
    if any(problem.options.tests for problem in problems):
        raise UserError("data.train: has problems with tests, and verl's reward function runs no programs.")
    renderer = PromptRenderer(load_tokenizer(start, study.model.revision), study.prompt)
    longest = max(len(renderer.ids(problem.problem)) for problem in [*problems, *validation])
    config: dict[str, Any] = {}
    for key, value in of_study(study, arm, seed, start, longest).items():
        *sections, last = key.split(".")
        functools.reduce(lambda place, section: place.setdefault(section, {}), sections, config)[last] = value
    methods = {registered_name(method): {**method.data(), "base": None}}  # complete without its base
    agents = [{"name": "seeded", "_target_": f"{VERL_PAIRED}.SeededAgentLoop"}]
    for name, content in (("verl.yaml", config), (METHODS_FILE, methods), ("agent.yaml", agents)):
        atomic_text(out / name, yaml.safe_dump(content, sort_keys=False))
    reward = VERL["reward"].format(grader=study.grader, extraction=study.extraction, opening=renderer.opening)
    atomic_text(out / "reward.py", reward)
    batches = settings.steps * (method.sampler.max_batches if method.sampler.dynamic else 1)
    train = itertools.islice(training_rows(problems, settings, seed), batches * settings.prompts_per_step)
    # One response per problem, with the loop's seeds.
    of_validation = ((problem, [number]) for number, problem in enumerate(validation))
    for name, rows in (("train", train), ("validation", of_validation)):
        _dataset(study, rows, renderer).to_parquet(out / f"{name}.parquet")


def registered_name(method: Method) -> str:
    """The name of the method in verl, with a digest, so that verl stops without the file of methods of this arm."""
    return f"{method.name}-{digests.of_json(method.data())[:8]}"


def of_study(study: Study, arm: Arm, seed: int, start: str, longest: int = 1) -> dict[str, Any]:
    """The settings of verl by dotted key. UserError for a key in `training.verl` that the study decides."""
    settings, method = arm.training, arm.method
    given = settings.model_dump(mode="json")
    compute = "bfloat16" if settings.compute == "auto" else settings.compute  # verl computes on GPUs
    model, actor, rollout = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout"))
    keys = {
        **VERL["always"],
        **{theirs: given[ours] for theirs, ours in VERL["of_study"].items()},
        "data.max_prompt_length": longest,  # in tokens
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
        "trainer.n_gpus_per_node": max(1, torch.cuda.device_count()),
    }
    if not study.prompt.chat:
        keys[f"{model}.custom_chat_template"] = PLAIN
    # Where dynamic sampling drops groups, verl's own replay buffer samples others in their place.
    if not method.sampler.dynamic:
        ordered = {"path": f"pkg://{VERL_PAIRED}", "name": "OrderedReplayBuffer"}
        keys |= flat(ordered, "trainer.v1.sampler.custom_sampler")
    own = flat(settings.verl)
    for key in own:
        decided = any(k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.") for k in keys)
        if decided and key not in VERL["resources"]:
            raise UserError(f"training.verl.{key}: the study decides this key of verl; leave it out.")
    return keys | own


def training_rows(problems: list[Problem], settings: Training, seed: int) -> Iterator[tuple[Problem, list[int]]]:
    """Endless: problems in the order of the loop's minibatches, with the seeds of their responses (`Collector`)."""
    count = settings.prompts_per_step
    stream, one_pass = prompt_stream(problems, seed), settings.model_copy(update={"epochs": 1})
    for step in itertools.count():
        for rows in minibatches_of_step(one_pass, count, 1, seed, step):
            for position in (step * count + rows).tolist():
                [problem] = stream.at(range(position, position + 1))
                yield problem, response_seeds(seed, position, settings.group)


def _dataset(study: Study, given: Iterable[tuple[Problem, list[int]]], renderer: PromptRenderer) -> pd.DataFrame:
    system = [{"role": "system", "content": study.prompt.system}] if study.prompt.chat else []
    rows = []
    for number, (problem, seeds) in enumerate(given):
        text, ids = study.prompt.template.replace("{problem}", problem.problem), renderer.ids(problem.problem)
        extra = {"index": number, "id": problem.id, "prompt_ids": ids, "seeds": seeds}
        row = {
            "data_source": study.name,
            "prompt": [*system, {"role": "user", "content": text}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {**extra, "options": json.dumps(asdict(problem.options))},
        }
        rows.append(row)
    return pd.DataFrame(rows)


# ---- read back -------------------------------------------------------------------------------------------------------


def read_back(folder: Path, settings: Training, dynamic: bool, run: RunFolder) -> FinalMetrics:
    """Convert the run that verl trained in ``folder`` to records in ``run``. UserError if it has not ended."""
    log, model = read_log(folder, settings.steps), final_model(folder, settings.steps)
    if not any(model.glob("*.safetensors")) or not (model / "config.json").exists():
        raise UserError(
            f"{model}: no model in Hugging Face's format. If verl saved only its shards, merge them: python -m "
            "verl.model_merger merge --backend fsdp --local_dir …/global_step_N/actor --target_dir this folder."
        )
    rows, timings = records_of(log, settings, dynamic)
    last = rows[-1]
    if math.isnan(last.get("validation_accuracy", math.nan)):
        raise UserError(f"{folder}: verl's log has no validation after the last step (trainer.test_freq).")
    with model_folder(run.model, again="it reads verl's run again") as into:
        shutil.copytree(model, into)
    atomic_text(run.metrics, "".join(map(line, rows)))
    atomic_text(run.timings, "".join(map(line, timings)))
    return FinalMetrics(
        validation_accuracy=last["validation_accuracy"],
        validation_length=math.nan,  # verl logs none
        steps=settings.steps,
        updates=last["total_updates"],
        tokens=last["total_tokens"],
        samples=last["total_samples"],
        seconds=timings[-1]["total_seconds"],
    )


def read_log(folder: Path, steps: int) -> ByStep:
    """verl's metrics by its step, from 0 (validation of the initial model) on. UserError if a step is missing.

    Later attempts replace steps of earlier ones: a resumed run repeats those since its checkpoint.
    """
    log: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("metrics*.jsonl")):  # one per attempt
        for _, row in json_lines(path, cut_off=[]):  # of an attempt that was killed
            numbers = {name: math.nan if v is None else v for name, v in row["data"].items()}  # verl writes NaN as null
            log[row["step"]] = log.get(row["step"], {}) | numbers
    if missing := [str(step) for step in range(1, steps + 1) if step not in log]:
        raise UserError(
            f"{folder}: the logs metrics*.jsonl lack {len(missing)} of {steps} steps ({some(missing, 5)}). Remove the "
            "folder to train the run from its beginning."
        )
    return log


def records_of(log: ByStep, settings: Training, dynamic: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of `metrics.jsonl`, one per step and the final validation, and those of `timings.jsonl`.

    With ``dynamic`` sampling, responses of dropped groups are assumed to be as long as the others.
    """
    rows: list[dict[str, Any]] = []
    timings: list[dict[str, Any]] = []
    totals, seconds = {"total_updates": 0, "total_tokens": 0, "total_samples": 0}, 0.0
    for step in range(max(log) + 1):
        row: dict[str, Any] = {"step": step}
        for name, accuracy in log.get(step, {}).items():
            if name.startswith("val-core/") and "/mean@" in name:
                row["validation_accuracy"] = float(accuracy)
        if data := log.get(step + 1):
            row |= {ours: float(data[theirs]) for ours, theirs in VERL["metrics"].items() if theirs in data}
            row |= {n.rpartition("/")[2]: float(v) for n, v in data.items() if n.startswith(PLUGIN)}
            row["accuracy"] = row.get("reward_mean")
            row["sampled_accuracy"] = None if dynamic else row["accuracy"]
            length, dropped = row.get("response_length_mean", 0.0), row.get("groups_dropped", 0.0)
            if math.isnan(length + dropped):
                raise UserError(f"verl's log has null for response_length_mean or groups_dropped at step {step + 1}.")
            sampled = (settings.prompts_per_step + int(dropped)) * settings.group
            totals["total_updates"] += settings.updates_of_batch
            totals["total_tokens"] += round(length * sampled)
            totals["total_samples"] += sampled
            used = {ours: float(data[theirs]) for ours, theirs in VERL["timings"].items() if theirs in data}
            seconds += used.get("seconds/total", 0.0)
            timings.append({"step": step, **used, "total_seconds": seconds})
        rows.append(row | totals)
    return rows, timings
