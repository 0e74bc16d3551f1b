"""Writes an arm of a study as a run of verl 0.9: configuration, problems, reward function (docs/your-trainer.md).

`verl_results.py` reads the run back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from .. import digests
from ..data.problem import Problem, read_problems
from ..data.prompts import PromptRenderer
from ..errors import UserError
from ..files import atomic_text, new_folder
from ..integrations.options import METHODS_FILE
from ..model.loading import load_tokenizer
from ..objective import Method
from ..paths import DataFolder
from ..records import ExportRecord, read_record, write_record
from ..study import Study
from ..study.runs import Arm
from ..study.schema import Training
from ..train.rollouts import prompt_stream, response_seeds
from ..train.update import minibatches_of_step
from .verl_config import AGENT, AGENT_LOOP, CONFIG, RECORD, REWARD, config, registered_name, with_changes

# The trainer's reward: PolicyGrain's grader, with the study's grader and extraction.
REWARD_SOURCE = '''"""verl's reward: 1 if PolicyGrain's grader finds the answer correct, else 0."""

from policygrain.grading import open_grader

_grader = open_grader({grader!r}, {extraction!r}).__enter__()


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Called by verl for each response."""
    return float(_grader.grade([ground_truth], [solution_str])[0] == "correct")
'''


def export(study: Study, arm: Arm, seed: int, data: DataFolder, out: Path, gpus: int) -> list[str]:
    """Write configuration, method, problems and reward to the empty folder ``out``; returns notes (`differences`).

    ``study.model.start`` is the folder or hub name of the initial model. UserError, without a folder left, if verl's
    reward function cannot grade the problems.
    """
    with new_folder(out) as folder:
        return _write(study, arm, seed, data, folder, gpus)


def _write(study: Study, arm: Arm, seed: int, data: DataFolder, out: Path, gpus: int) -> list[str]:
    settings, method = arm.training(study), arm.method(study)
    problems = {"train": read_problems(data.train), "validation": read_problems(data.validation)}
    if any(problem.options.tests for problem in problems["train"]):
        raise UserError(
            "data.train: problems with tests cannot be trained by verl: its reward function runs no programs."
        )
    out.mkdir(parents=True)
    renderer = PromptRenderer(load_tokenizer(study.model.start, study.model.revision), study.prompt)
    batches = settings.steps * (method.sampler.max_batches if method.sampler.dynamic else 1)
    train = itertools.islice(training_rows(problems["train"], settings, seed), batches * settings.prompts_per_step)
    _write_parquet(study, train, renderer, out / "train.parquet")
    # One response per problem, with the loop's seeds.
    validation = ((problem, [number]) for number, problem in enumerate(problems["validation"]))
    _write_parquet(study, validation, renderer, out / "validation.parquet")
    atomic_text(out / AGENT, yaml.safe_dump([AGENT_LOOP], sort_keys=False))
    atomic_text(out / REWARD, REWARD_SOURCE.format(grader=study.grader, extraction=study.extraction))
    longest = max(len(renderer.ids(problem.problem)) for listed in problems.values() for problem in listed)
    text = yaml.safe_dump(with_changes(config(study, arm, seed, longest, gpus), settings.verl), sort_keys=False)
    atomic_text(out / f"{CONFIG}.yaml", text)
    atomic_text(out / METHODS_FILE, yaml.safe_dump({registered_name(method): method.data()}, sort_keys=False))
    files = [f"{CONFIG}.yaml", METHODS_FILE, REWARD, AGENT, *(f"{name}.parquet" for name in problems)]
    write_record(out / RECORD, ExportRecord(engine="verl", files={name: digests.of_file(out / name) for name in files}))
    return differences(method, settings)


def check_unchanged(folder: Path) -> None:
    """UserError if the files of an exported folder were changed since."""
    for name, digest in read_record(ExportRecord, folder / RECORD, f"Remove {folder}.").files.items():
        if not (folder / name).exists() or digests.of_file(folder / name) != digest:
            raise UserError(
                f"{folder / name}: was changed after the export, so verl would train another run. Change the study, or "
                f"remove {folder}."
            )


def differences(method: Method, settings: Training) -> list[str]:
    """How the run in verl differs from the same arm in the loop, as clauses for notes."""
    notes = [
        "on several GPUs verl composes minibatches by length, so runs are paired with those of the loop only by "
        "prompts and sampling seeds",
        "gradients are clipped and averaged by verl's FSDP",
    ]
    if settings.epochs > 1:
        notes.append("each pass over a batch has the same minibatches")
    if settings.warmup_updates:
        notes.append("during warmup the learning rate grows once per batch, not with each optimizer step")
    if method.sampler.dynamic:
        notes.append(
            "verl samples groups until a batch is full, without the limit sampler.max_batches, and replaces dropped "
            "groups by other groups than the loop, so runs of the two trainers are not paired"
        )
    return notes


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


def _write_parquet(
    study: Study, rows: Iterable[tuple[Problem, list[int]]], renderer: PromptRenderer, path: Path
) -> None:
    """Write problems, with the seeds of their responses, in the format of verl's datasets."""
    import pandas as pd

    written = []
    for number, (problem, seeds) in enumerate(rows):
        text = study.prompt.template.replace("{problem}", problem.problem)
        messages = [{"role": "user", "content": text}]
        if study.prompt.chat:
            messages.insert(0, {"role": "system", "content": study.prompt.system})
        ids = renderer.ids(problem.problem)
        written.append(
            {
                "data_source": study.name,
                "prompt": messages,
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": problem.answer},
                "extra_info": {"index": number, "id": problem.id, "prompt_ids": ids, "seeds": seeds},
            }
        )
    pd.DataFrame(written).to_parquet(path)
