"""The problems of a study: from synthetic families, registered sets and JSON Lines files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import digests
from ..errors import UserError, did_you_mean
from ..paths import DataFolder
from ..records import Contamination, read_record, write_record
from .contamination import overlaps
from .families import CHARACTERS, FAMILIES, generate
from .problem import Problem, read_problems, write_problems
from .sets import ROOT_VARIABLE, SETS, data_root, load_set

if TYPE_CHECKING:
    from ..study.schema import Benchmark, Study

FAMILY_SIZE = 300  # test problems of a family if the study does not set it


def load(source: str, root: Path | None, limit: int | None = None, where: str = "") -> list[Problem]:
    """At most ``limit`` problems of a registered set or a file, in order.

    UserError if there is no such source, or its file is missing or is not the registered set; ``where`` is its key.
    """
    folder, where = data_root(root), where or source
    if source in SETS:
        return load_set(SETS[source], folder, where, limit)
    if not source.endswith(".jsonl"):
        hint = did_you_mean(source, [*FAMILIES, *SETS])
        raise UserError(
            f"{where}: {source!r} is neither a family of problems, nor a registered set, nor a .jsonl file.{hint}"
        )
    if not (path := folder / source).is_file():
        root_hint = f"data.root is {root}" if root else f"set data.root or {ROOT_VARIABLE} to the folder it is in"
        raise UserError(f"{where}: {path}: no such dataset file ({root_hint}).")
    return read_problems(path, limit)


def check_ids(problems: list[Problem], source: str) -> None:
    """UserError if two problems have the same id, by which scores are grouped."""
    (name, count), *_ = Counter(problem.id for problem in problems).most_common(1) or [("", 0)]
    if count > 1:
        raise UserError(f"{source}: {count} problems have the id {name!r}; each problem of a benchmark needs its own.")


def check_sources(study: Study) -> None:
    """UserError, naming the key, where a source of problems cannot be opened or is not the registered set."""
    sources = {f"data.train[{i}]": source for i, source in enumerate(study.data.train)}
    sources |= {f"evaluation.benchmarks[{i}].source": b.source for i, b in enumerate(study.evaluation.benchmarks)}
    for where, source in sources.items():
        if source not in FAMILIES:
            load(source, study.data.root, 1, where)


def check_characters(study: Study, problems: Iterable[Problem], where: str) -> None:
    """UserError where a tiny model has no tokens for a problem, its prompt or its answer.

    ``where``: the key that names the problems. All text has tokens in other models, and with `model.tiny.vocabulary`.
    """
    if study.model.start != "tiny" or study.model.tiny.vocabulary is not None:
        return
    for problem in problems:
        key, template = "template", study.prompt.template
        if problem.options.tests:
            key, template = "program", study.prompt.program
        for place, text in (
            (f"prompt.{key}", template.replace("{problem}", "")),
            (f"{where}: {problem.id}", problem.problem + problem.answer),
        ):
            if missing := sorted(set(text).difference(CHARACTERS)):
                raise UserError(
                    f"{place}: the tiny model has no token for {', '.join(map(repr, missing[:5]))}. Set "
                    "model.tiny.vocabulary (512, for example), whose tokens can write any text."
                )


def source_digests(study: Study) -> dict[str, str]:
    """Source → digest of its file, of the study's sources that are files and are there."""
    root, by_source = data_root(study.data.root), {}
    for source in [*study.data.train, *(b.source for b in study.evaluation.benchmarks)]:
        path = root / (SETS[source].file if source in SETS else source)
        if source not in FAMILIES and path.is_file():
            by_source[source] = digests.of_file(path)
    return by_source


def prepare_training(study: Study, out: DataFolder) -> None:
    """Write training and validation problems, which are disjoint."""
    data = study.data
    train: list[Problem] = []
    validation: list[Problem] = []
    for source in data.train:
        if source in FAMILIES:
            train += generate(source, "train", data.train_size, data.seed, data.levels)
            validation += generate(source, "validation", data.validation_size, data.seed, data.levels)
            continue
        problems = load(source, data.root, data.train_size + data.validation_size)
        random.Random(f"{source}/{data.seed}").shuffle(problems)
        held_out = problems[: min(data.validation_size, len(problems) // 2)]
        questions = {p.problem for p in held_out}
        validation += held_out
        train += [p for p in problems[len(held_out) :] if p.problem not in questions]
    if not train:
        raise UserError("data.train: nothing is left to train on; the files hold too few problems.")
    write_problems(out.train, train)
    write_problems(out.validation, validation)


def prepare_benchmarks(study: Study, out: DataFolder) -> None:
    """Write the problems of all benchmarks; `contamination.json` lists those that are among the training prompts.

    Synthetic problems are not compared: their splits share no question, and questions of a family have similar words.
    """
    data = study.data
    families = [source for source in data.train if source in FAMILIES]
    synthetic = {p for source in families for p in generate(source, "train", data.train_size, data.seed, data.levels)}
    foreign = [p for p in read_problems(out.train) if p not in synthetic]
    compared: dict[str, list[Problem]] = {}
    for benchmark in study.evaluation.benchmarks:
        problems = benchmark_problems(benchmark, data.root, data.seed, data.levels)
        compared[benchmark.name] = [] if benchmark.source in FAMILIES else problems
        write_problems(out.benchmark(benchmark.name), problems)
    write_record(out.contamination, Contamination(overlaps=overlaps(foreign, compared)))


def benchmark_problems(
    benchmark: Benchmark, root: Path | None, seed: int = 1, levels: Sequence[int] = (1, 2, 3)
) -> list[Problem]:
    """The problems of a benchmark; ``seed`` and ``levels`` of synthetic ones are by default those of a study."""
    if benchmark.source in FAMILIES:
        return generate(benchmark.source, "test", benchmark.size or FAMILY_SIZE, seed, levels)
    problems = load(benchmark.source, root, benchmark.size)
    check_ids(problems, benchmark.source)
    return problems


def contaminated(data: DataFolder, benchmark: str) -> set[str]:
    """Ids of a benchmark's problems that are among the training prompts."""
    if not data.contamination.exists():
        return set()
    record = read_record(Contamination, data.contamination, "Prepare the data again: `policygrain prepare`.")
    return {pair["benchmark"] for pair in record.overlaps.get(benchmark, [])}
