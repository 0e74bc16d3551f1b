"""Checks of a study before anything is computed: by `policygrain check`, and by the first job of a workflow."""

from __future__ import annotations

import sys
from pathlib import Path

from ..data.families import FAMILIES, families_to_demonstrate, generate
from ..data.sets import sampling_of
from ..data.sources import check_characters, check_ids, check_sources, load
from ..errors import UserError
from ..figures.shown import check_figures
from ..files import read_json
from ..grading.sandbox import isolation
from ..hub import config_of
from ..study import Study
from ..study.comparable import check_comparisons, check_tuning
from ..study.runs import methods_of, run_matrix
from ..trainers.check import check_trainers, trainer_notes

SOME = 60  # problems that are checked of each synthetic family


def check_study(study: Study) -> None:
    """UserError for the first mistake in methods, figures, problems, initial model or lengths; prints `notes`."""
    for method in methods_of(study):
        method.check()
    check_trainers(study)
    check_comparisons(study)
    check_tuning(study)
    check_figures(study)
    check_sources(study)
    if study.model.start == "tiny":
        if study.prompt.chat:
            raise UserError("prompt.chat: the tiny model's tokenizer has no chat template; set it to false.")
        families_to_demonstrate(study)
    _check_problems(study)
    _check_lengths(study, _context(study))
    for note in notes(study):
        print(f"policygrain: note: {note}", file=sys.stderr)


def notes(study: Study) -> list[str]:
    """Warnings about settings that are allowed and probably not intended."""
    messages = []
    needed = study.data.train_size + study.data.validation_size
    for source in study.data.train:
        if source not in FAMILIES and (count := len(load(source, study.data.root, needed))) < needed:
            messages.append(
                f"data.train: {source} has {count} problems, fewer than train_size + validation_size ({needed}); all "
                "are used."
            )
    arms = run_matrix(study).arms
    trained = [arm.training for arm in arms.values() if arm.training.trainer != "command"]
    if trained and all(t.updates_of_batch == 1 and not t.off_policy_steps for t in trained):
        messages.append(
            "training.updates_per_batch and training.epochs are 1 in all arms, and training.off_policy_steps is 0: all "
            "importance ratios are 1, and methods that differ only in the ratio or clip are the same."
        )
    return messages + trainer_notes(study)


def _check_problems(study: Study) -> None:
    """Read all problems. UserError for an invalid line, or if problems have tests and this machine has no sandbox."""
    data = study.data
    keys = {b.source: f"evaluation.benchmarks: {b.name}" for b in study.evaluation.benchmarks}
    for source in dict.fromkeys([*data.train, *keys]):
        where = "data.train" if source in data.train else keys[source]
        if source in FAMILIES:
            problems = generate(source, "train", SOME, data.seed, data.levels)
        else:
            problems = load(source, data.root)
            for benchmark in study.evaluation.benchmarks:
                if benchmark.source == source:
                    check_ids(problems[: benchmark.size], f"evaluation.benchmarks: {benchmark.name}")
            inexact = next((p.id for p in problems if not (p.options.tests or p.options.exact)), None)
            if study.grader == "numeric" and inexact is not None:
                raise UserError(f"grader: {where}: {inexact} has a tolerance or a list of answers; set grader: math.")
        check_characters(study, problems, where)
        if any(problem.options.tests for problem in problems):
            isolation()


def _context(study: Study) -> int | None:
    """The initial model's context length in tokens, None if unknown. UserError if the model is not found."""
    start = study.model.start
    if start == "tiny":
        return study.model.tiny.context
    folder = Path(start)
    if folder.is_dir():
        for name in ("config.json", "tokenizer_config.json"):
            if not (folder / name).is_file():
                raise UserError(f"model.start: {folder} is not a model with a tokenizer: {name} is missing.")
    try:
        config = read_json(config_of(start, study.model.revision), "Download the model again.")
    except UserError as error:
        raise UserError(f"model.start: {error}") from error
    context = config.get("text_config", config).get("max_position_embeddings")
    return context if isinstance(context, int) else None


def _check_lengths(study: Study, context: int | None) -> None:
    trained = [arm.training for arm in run_matrix(study).arms.values() if arm.training.trainer != "command"]
    lengths = {"training.max_tokens": max((training.max_tokens for training in trained), default=0)}
    for i, benchmark in enumerate(study.evaluation.benchmarks):
        lengths[f"evaluation.benchmarks[{i}].sampling.max_tokens"] = sampling_of(study, benchmark).max_tokens
    for key, length in lengths.items():
        if context is not None and length >= context:
            raise UserError(
                f"{key}: {length} tokens leave no room for a prompt in the model's context of {context} tokens."
            )
