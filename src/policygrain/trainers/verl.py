"""verl as the trainer of a run: the run is written for verl 0.9, trained in verl's own environment, and read back.

On one GPU and without dynamic sampling verl samples and updates as the loop does (`integrations.verl_paired`). verl
saves periodically; a resumed run repeats the steps after the last checkpoint.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
import yaml

from ..data.problem import Problem, read_problems
from ..data.prompts import PromptRenderer
from ..errors import UserError
from ..files import atomic_text, json_lines, model_folder
from ..integrations.options import EXPORTED, METHODS_FILE, VERL_PAIRED
from ..model.loading import load_tokenizer
from ..records import FinalMetrics
from ..text import some
from ..train.batch import minibatches_of_step
from ..train.checkpoint import line
from ..train.rollouts import prompt_stream, response_seeds
from .program import run_program
from .verl_settings import VERL, nested, of_study, registered_name, verl_python, with_changes

if TYPE_CHECKING:
    from ..paths import DataFolder, RunFolder
    from ..study import Study
    from ..study.runs import Arm
    from ..study.schema import Training
    from ..train.stopping import Stop

# verl's reward: PolicyGrain's grader, with the study's grader and extraction.
REWARD_SOURCE = '''"""verl's reward: 1 if PolicyGrain's grader finds the answer correct, else 0."""

from policygrain.grading import Item, open_grader

_grader = open_grader({grader!r}, {extraction!r}).__enter__()


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Called by verl for each response."""
    return float(_grader.grade([Item(ground_truth, solution_str)])[0] == "correct")
'''
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
        export(study, arm, seed, start, data, folder, max(1, torch.cuda.device_count()))
        # A log for each attempt, because verl's logger overwrites its file.
        log = folder / f"metrics{len(_logs(folder)) + 1:04d}.jsonl"
        variables = {EXPORTED: str(folder), "VERL_FILE_LOGGER_PATH": str(log)}
        command = [str(verl_python()), "-m", "verl.trainer.main_ppo", "--config-path", str(folder)]
        command += ["--config-name", "verl"]
        run_program("verl", command, folder, folder / "verl.log", variables, stop, lambda: _resumes(folder))
    return read_back(folder, settings, arm.method.sampler.dynamic, run)


def final_model(folder: Path, steps: int) -> Path:
    """The model of the last checkpoint."""
    return folder / "checkpoints" / f"global_step_{steps}" / "actor" / "huggingface"


def _logs(folder: Path) -> list[Path]:
    """The logs of all attempts, in their order."""
    return sorted(folder.glob("metrics*.jsonl"))


def _resumes(folder: Path) -> str:
    """The step from which the same command resumes, for messages."""
    newest = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    if newest.exists():
        return f"the same command resumes from verl's checkpoint of step {newest.read_text().strip()}."
    return "verl had saved no checkpoint, so the same command starts from the beginning (training.checkpoint_every)."


# ---- written for verl ------------------------------------------------------------------------------------------------


def export(study: Study, arm: Arm, seed: int, start: str, data: DataFolder, out: Path, gpus: int) -> None:
    """Write configuration, method, problems and reward into ``out``, the same content in every attempt of a run.

    UserError if verl's reward function cannot grade the problems.
    """
    settings, method = arm.training, arm.method
    problems, validation = read_problems(data.train), read_problems(data.validation)
    if any(problem.options.tests for problem in problems):
        raise UserError(
            "data.train: problems with tests cannot be trained by verl: its reward function runs no programs."
        )
    renderer = PromptRenderer(load_tokenizer(start, study.model.revision), study.prompt)
    longest = max(len(renderer.ids(problem.problem)) for problem in [*problems, *validation])
    keys = with_changes(of_study(study, arm, seed, start, longest, gpus), settings.verl)
    batches = settings.steps * (method.sampler.max_batches if method.sampler.dynamic else 1)
    train = itertools.islice(training_rows(problems, settings, seed), batches * settings.prompts_per_step)
    agent = {"name": "seeded", "_target_": f"{VERL_PAIRED}.SeededAgentLoop"}
    for name, content in {
        "verl.yaml": nested(keys),
        METHODS_FILE: {registered_name(method): {**method.data(), "base": None}},  # complete without its base
        "agent.yaml": [agent],
    }.items():
        atomic_text(out / name, yaml.safe_dump(content, sort_keys=False))
    atomic_text(out / "reward.py", REWARD_SOURCE.format(grader=study.grader, extraction=study.extraction))
    _dataset(study, train, renderer).to_parquet(out / "train.parquet")
    # One response per problem, with the loop's seeds.
    of_validation = ((problem, [number]) for number, problem in enumerate(validation))
    _dataset(study, of_validation, renderer).to_parquet(out / "validation.parquet")


def training_rows(problems: list[Problem], settings: Training, seed: int) -> Iterator[tuple[Problem, list[int]]]:
    """An endless sequence of problems in the order in which the loop trains on them, minibatch by minibatch.

    Each comes with the seeds by which the loop samples its responses (`Collector`).
    """
    count = settings.prompts_per_step
    stream, one_pass = prompt_stream(problems, seed), settings.model_copy(update={"epochs": 1})
    for step in itertools.count():
        for rows in minibatches_of_step(one_pass, count, 1, seed, step):
            for position in (step * count + rows).tolist():
                [problem] = stream.at(range(position, position + 1))
                yield problem, response_seeds(seed, position, settings.group)


def _dataset(study: Study, rows: Iterable[tuple[Problem, list[int]]], renderer: PromptRenderer) -> pd.DataFrame:
    """Problems, with the seeds of their responses, in the format of verl's datasets."""
    system = [{"role": "system", "content": study.prompt.system}] if study.prompt.chat else []
    return pd.DataFrame(
        {
            "data_source": study.name,
            "prompt": [
                *system,
                {"role": "user", "content": study.prompt.template.replace("{problem}", problem.problem)},
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {
                "index": number,
                "id": problem.id,
                "prompt_ids": renderer.ids(problem.problem),
                "seeds": seeds,
            },
        }
        for number, (problem, seeds) in enumerate(rows)
    )


# ---- read back -------------------------------------------------------------------------------------------------------


def read_back(folder: Path, settings: Training, dynamic: bool, run: RunFolder) -> FinalMetrics:
    """Convert the run that verl trained in ``folder`` to records in ``run``.

    ``dynamic``: whether verl used dynamic sampling. UserError if steps or the final model are missing.
    """
    log, model = read_log(folder, settings.steps), final_model(folder, settings.steps)
    if not any(model.glob("*.safetensors")) or not (model / "config.json").exists():
        raise UserError(
            f"{model}: no model in Hugging Face's format. If verl saved only its shards, merge them: python -m "
            "verl.model_merger merge --backend fsdp --local_dir …/global_step_N/actor --target_dir this folder."
        )
    rows, timings = metric_rows(log, settings, dynamic), timing_rows(log)
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
    """verl's metrics by its step, from 0 (validation of the initial model, if there was one) to ``steps``.

    Later attempts replace steps of earlier ones: a resumed run repeats the steps since its checkpoint, and validates at
    its beginning. UserError if a step is missing.
    """
    log: dict[int, dict[str, Any]] = {}
    for path in _logs(folder):
        for _, row in json_lines(path, cut_off=[]):  # of an attempt that was killed
            numbers = {name: math.nan if v is None else v for name, v in row["data"].items()}  # verl writes NaN as null
            log[row["step"]] = log.get(row["step"], {}) | numbers
    if missing := [str(step) for step in range(1, steps + 1) if step not in log]:
        raise UserError(
            f"{folder}: the logs metrics*.jsonl lack {len(missing)} of {steps} steps ({some(missing, 5)}). Remove the "
            "folder to train the run from its beginning."
        )
    return log


def metric_rows(log: ByStep, settings: Training, dynamic: bool) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`: one per step, and the final validation.

    With ``dynamic`` sampling, verl logs only the number of dropped groups: their responses are assumed to be as long as
    the others.
    """
    rows: list[dict[str, Any]] = []
    totals = {"total_updates": 0, "total_tokens": 0, "total_samples": 0}
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
                raise UserError(
                    f"verl's log has no number for response_length_mean or groups_dropped at step {step + 1} (null), "
                    "which are counted."
                )
            sampled = (settings.prompts_per_step + int(dropped)) * settings.group
            totals["total_updates"] += settings.updates_of_batch
            totals["total_tokens"] += round(length * sampled)
            totals["total_samples"] += sampled
        rows.append(row | totals)
    return rows


def timing_rows(log: ByStep) -> list[dict[str, Any]]:
    """The rows of `timings.jsonl`."""
    rows: list[dict[str, Any]] = []
    total = 0.0
    for step in range(1, max(log) + 1):
        timings = {ours: float(log[step][theirs]) for ours, theirs in VERL["timings"].items() if theirs in log[step]}
        total += timings.get("seconds/total", 0.0)
        rows.append({"step": step - 1, **timings, "total_seconds": total})
    return rows
