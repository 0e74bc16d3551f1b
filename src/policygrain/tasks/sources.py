"""Problem sources by name: a synthetic family, a registered set, or a JSON Lines file."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, did_you_mean
from ..files import atomic_json, read_json
from . import check, registry
from .check import ROOT_VARIABLE, data_root
from .contamination import TrainingIndex, as_data
from .families import FAMILIES, generate
from .problem import Problem, read_problems, write_problems

if TYPE_CHECKING:
    from ..study.schema import Study

# Number of test problems of a family if the study sets none.
FAMILY_SIZE = 300


def is_file(source: str) -> bool:
    """Whether ``source`` names a dataset file, not a family or a registered set."""
    return source.endswith(".jsonl")


def check_name(source: str, where: str) -> None:
    """UserError with the key ``where`` if ``source`` is no valid name; whether a file exists is not checked."""
    if source not in FAMILIES and source not in registry.names() and not is_file(source):
        hint = did_you_mean(source, [*FAMILIES, *registry.names()])
        raise UserError(
            f"{where}: {source!r} is neither a family of problems, nor a registered set, nor a .jsonl file.{hint}"
        )


def check_source(source: str, root: Path | None, where: str) -> None:
    """UserError with the key ``where`` if a source's file is missing or is not the registered set of that name."""
    check_name(source, where)
    if source in FAMILIES:
        return
    if source in registry.names():
        check.require(registry.dataset(source), data_root(root), where)
        return
    path = data_root(root) / source
    if not path.is_file():
        root_hint = f"data.root is {root}" if root else f"set data.root or {ROOT_VARIABLE} to the folder it is in"
        raise UserError(f"{where}: {path}: no such dataset file ({root_hint}).")


def load(source: str, root: Path | None, limit: int | None = None) -> list[Problem]:
    """At most ``limit`` problems of a registered set or a file, in order."""
    if source in registry.names():
        dataset = registry.dataset(source)
        return check.load(dataset, check.require(dataset, data_root(root), source), limit)
    return read_problems(data_root(root) / source, limit)


def prepare(study: Study, folder: Path) -> None:
    """Write a study's problems: train.jsonl, validation.jsonl, benchmarks/NAME.jsonl, and contamination.json.

    Training and validation are disjoint. Benchmark problems that are among the training prompts are listed in
    contamination.json, not removed.
    """
    data = study.data
    train: list[Problem] = []
    validation: list[Problem] = []
    foreign: list[Problem] = []
    for source in data.train:
        if source in FAMILIES:
            train += generate(source, "train", data.train_size, data.seed)
            validation += generate(source, "validation", data.validation_size, data.seed)
            continue
        problems = load(source, data.root, data.train_size + data.validation_size)
        random.Random(f"{source}/{data.seed}").shuffle(problems)
        held_out = problems[: min(data.validation_size, len(problems) // 2)]
        questions = {p.problem for p in held_out}
        validation += held_out
        kept = [p for p in problems[len(held_out) :] if p.problem not in questions]
        foreign += kept
        train += kept
    if not train:
        raise UserError("data.train: nothing is left to train on; the files hold too few problems.")
    write_problems(folder / "train.jsonl", train)
    write_problems(folder / "validation.jsonl", validation)
    compared: dict[str, list[Problem]] = {}
    for benchmark in study.evaluation.benchmarks:
        if benchmark.source in FAMILIES:
            problems = generate(benchmark.source, "test", benchmark.size or FAMILY_SIZE, data.seed)
            compared[benchmark.name] = []
        else:
            problems = compared[benchmark.name] = load(benchmark.source, data.root, benchmark.size)
        write_problems(folder / "benchmarks" / f"{benchmark.name}.jsonl", problems)
    write_contamination(folder / "contamination.json", foreign, compared)


def write_contamination(path: Path, train: list[Problem], benchmarks: Mapping[str, list[Problem]]) -> None:
    """Write the problems of each benchmark that are among the training prompts.

    Synthetic problems are not compared: their splits share no question by construction, and different questions of a
    family have similar words.
    """
    index = TrainingIndex(train)
    atomic_json(path, as_data({name: index.overlaps(problems) for name, problems in benchmarks.items()}))


def contaminated(folder: Path, benchmark: str) -> set[str]:
    """Ids of a benchmark's problems that are among the training prompts, by contamination.json in ``folder``.

    Empty if there is no such file.
    """
    path = folder / "contamination.json"
    return {pair["benchmark"] for pair in read_json(path).get(benchmark, [])} if path.exists() else set()
