"""The door through which problems come in: a family's name, or a JSON Lines file."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, did_you_mean
from .families import FAMILIES, generate
from .problem import Problem, read_problems, write_problems

if TYPE_CHECKING:
    from ..study.schema import Study


# Where datasets lie when a study does not say.
ROOT_VARIABLE = "POLICYGRAIN_DATA"


def is_file(source: str) -> bool:
    """Whether a source is a dataset file and not a family."""
    return source.endswith(".jsonl")


def _path(source: str, root: Path | None) -> Path:
    return (root or Path(os.environ.get(ROOT_VARIABLE, "."))) / source


def check_source(source: str, root: Path | None, where: str) -> None:
    """UserError, naming the key, when a source cannot be opened."""
    if not is_file(source) and source not in FAMILIES:
        hint = did_you_mean(source, FAMILIES)
        raise UserError(f"{where}: {source!r} is neither a family of problems nor a .jsonl file.{hint}")
    if is_file(source) and not _path(source, root).is_file():
        root_hint = f"data.root is {root}" if root else f"set data.root or {ROOT_VARIABLE} to the folder it is in"
        raise UserError(f"{where}: {_path(source, root)}: no such dataset file ({root_hint}).")


def prepare(study: Study, folder: Path) -> None:
    """Write a study's problems: train.jsonl, validation.jsonl and benchmarks/NAME.jsonl.

    Training and validation are disjoint. A benchmark file is taken as it is.
    """
    data = study.data
    train: list[Problem] = []
    validation: list[Problem] = []
    for source in data.train:
        if is_file(source):
            problems = read_problems(_path(source, data.root), data.train_size + data.validation_size)
            random.Random(f"{source}/{data.seed}").shuffle(problems)
            held_out = problems[: min(data.validation_size, len(problems) // 2)]
            questions = {p.problem for p in held_out}
            validation += held_out
            train += [p for p in problems[len(held_out) :] if p.problem not in questions]
        else:
            train += generate(source, "train", data.train_size, data.seed)
            validation += generate(source, "validation", data.validation_size, data.seed)
    if not train:
        raise UserError("data.train: nothing is left to train on; the files hold too few problems.")
    write_problems(folder / "train.jsonl", train)
    write_problems(folder / "validation.jsonl", validation)
    for benchmark in study.evaluation.benchmarks:
        if is_file(benchmark.source):
            problems = read_problems(_path(benchmark.source, data.root), benchmark.size)
        else:
            problems = generate(benchmark.source, "test", benchmark.size, data.seed)
        write_problems(folder / "benchmarks" / f"{benchmark.name}.jsonl", problems)
