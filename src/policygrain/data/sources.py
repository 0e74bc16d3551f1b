"""The problems of a study, from synthetic families, registered sets and JSON Lines files, and checks of them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import digests
from ..errors import UserError, did_you_mean
from ..grading import CodeGrader, Item, MathGrader
from ..paths import DataFolder
from ..records import Contamination, read_record, write_record
from ..text import shortened, some
from .contamination import overlaps
from .families import CHARACTERS, FAMILIES, generate
from .problem import Problem, read_problems, with_repeats, write_problems
from .sets import ROOT_VARIABLE, SETS, data_root, load_set

if TYPE_CHECKING:
    from ..study.schema import Benchmark, Study

FAMILY_SIZE = 300  # test problems of a family if the study does not set it
TRIVIAL = ("return None", "return []", "return 0")  # programs that solve no problem
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}(?![A-Za-z{])")  # a word in an answer, not a command


def load(source: str, root: Path | None, limit: int | None = None, where: str = "") -> list[Problem]:
    """At most ``limit`` problems of a registered set or a file. UserError that begins with ``where``, the key of it."""
    folder, where = data_root(root), where or source
    if source in SETS:
        return load_set(SETS[source], folder, where, limit)
    if not source.endswith(".jsonl"):
        hint = did_you_mean(source, [*FAMILIES, *SETS])
        raise UserError(f"{where}: {source!r} is neither a family nor a registered set nor a .jsonl file.{hint}")
    if not (path := folder / source).is_file():
        root_hint = f"data.root is {root}" if root else f"set data.root or {ROOT_VARIABLE} to the folder it is in"
        raise UserError(f"{where}: {path}: no such dataset file ({root_hint}).")
    return read_problems(path, limit)


def benchmark_problems(
    benchmark: Benchmark, root: Path | None, seed: int = 1, levels: Sequence[int] = (1, 2, 3)
) -> list[Problem]:
    """The problems of a benchmark; ``seed`` and ``levels`` of synthetic ones are by default those of a study."""
    if benchmark.source in FAMILIES:
        return generate(benchmark.source, "test", benchmark.size or FAMILY_SIZE, seed, levels)
    problems = load(benchmark.source, root, benchmark.size)
    check_ids(with_repeats(problems), benchmark.source)
    return problems


def source_digests(study: Study) -> dict[str, str]:
    """Source → digest of its file, of the study's sources that are files and are there."""
    root = data_root(study.data.root)
    sources = [*study.data.train, *(b.source for b in study.evaluation.benchmarks)]
    paths = {s: root / (SETS[s].file if s in SETS else s) for s in sources if s not in FAMILIES}
    return {source: digests.of_file(path) for source, path in paths.items() if path.is_file()}


def prepare_training(study: Study, out: DataFolder) -> None:
    """Write training and validation problems, which are disjoint."""
    data = study.data
    train, validation = list[Problem](), list[Problem]()
    for source in data.train:
        if source in FAMILIES:
            train += generate(source, "train", data.train_size, data.seed, data.levels)
            validation += generate(source, "validation", data.validation_size, data.seed, data.levels)
            continue
        problems = load(source, data.root, data.train_size + data.validation_size)
        random.Random(f"{source}/{data.seed}").shuffle(problems)
        count = min(data.validation_size, len(problems) // 2)
        validation += problems[:count]
        train += problems[count:]
    held_out = {p.problem for p in validation}  # sources may share problems
    train = [p for p in train if p.problem not in held_out]
    if not train:
        raise UserError("data.train: nothing is left to train on; the files hold too few problems.")
    write_problems(out.train, train)
    write_problems(out.validation, validation)


def prepare_benchmarks(study: Study, out: DataFolder) -> None:
    """Write the problems of all benchmarks, and which of them, synthetic ones apart, are among the training prompts."""
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


def contaminated(data: DataFolder, benchmark: str) -> set[str]:
    """Ids of a benchmark's problems that are among the training prompts."""
    if not data.contamination.exists():
        return set()
    record = read_record(Contamination, data.contamination, "Prepare the data again: `policygrain prepare`.")
    return {pair["benchmark"] for pair in record.overlaps.get(benchmark, [])}


# ---- checks before anything is computed ------------------------------------------------------------------------------


def check_ids(problems: Iterable[Problem], source: str) -> None:
    (name, count), *_ = Counter(problem.id for problem in problems).most_common(1) or [("", 0)]
    if count > 1:
        raise UserError(f"{source}: {count} problems have the id {name!r}; each problem of a benchmark needs its own.")


def check_characters(study: Study, problems: Iterable[Problem], where: str) -> None:
    """UserError where a tiny model has no tokens for a problem, which ``where`` names, its prompt or its answer."""
    if study.model.start != "tiny" or study.model.tiny.vocabulary is not None:
        return
    for problem in problems:
        key = "program" if problem.options.tests else "template"
        prompt = getattr(study.prompt, key).replace("{problem}", "")
        for place, text in ((f"prompt.{key}", prompt), (f"{where}: {problem.id}", problem.problem + problem.answer)):
            if missing := sorted(set(text).difference(CHARACTERS)):
                raise UserError(
                    f"{place}: the tiny model has no token for {', '.join(map(repr, missing[:5]))}. Set "
                    "model.tiny.vocabulary (512, for example), whose tokens can write any text."
                )


def check_golds(files: list[Path], grader_name: str) -> None:
    """UserError that names problems in ``files`` with gold answers that cannot be read, or with wrong tests."""
    for path in files:
        problems = read_problems(path)
        if with_tests := [p for p in problems if p.options.tests]:
            _check_tests(path, with_tests)
        if grader_name == "math":
            items = [Item(p.answer, "", p.options, p.id) for p in problems if not p.options.tests]
            with MathGrader() as grader:
                bad = grader.unreadable_golds(items)
            if bad:
                named = some([f"{item.name} ({shortened(repr(item.gold), 80)})" for item in bad], 5)
                raise UserError(f"gold answers that cannot be read as mathematics: {named}. Correct or remove them.")


def _check_tests(path: Path, problems: list[Problem]) -> None:
    """UserError that names problems whose solution fails their tests, or whose tests accept a constant result."""
    tried = [(p, "", p.answer) for p in problems if p.answer]
    tried += [(p, body, f"def {p.options.entry_point}(*_, **__): {body}") for p in problems for body in TRIVIAL]
    items = [Item("", program, p.options, f"{path}: {p.id}") for p, _, program in tried]
    with CodeGrader() as grader:
        outcomes = grader.grade(items)
    faults = []
    for (_, body, _), item, outcome in zip(tried, items, outcomes, strict=True):
        if body and outcome == "correct":
            faults.append(f"{item.name}: a program that is only `{body}` passes its tests. Add a test that it fails.")
        elif not body and outcome != "correct":
            faults.append(
                f"{item.name}: its solution is graded {outcome}. Programs can import only Python's standard library, "
                "and exchange only copies of values of Python's own types with the tests (docs/coding.md)."
            )
    if faults:
        rest = [f"{path}: {len(faults) - 5} more faults of tests."] if len(faults) > 5 else []
        raise UserError("\n".join(faults[:5] + rest))


def notes_on(problems: list[Problem]) -> list[str]:
    """What to know about problems that can be graded: repeated ones, and answers that are sentences."""
    notes, different = [], len(with_repeats(problems))
    if different < len(problems):
        notes.append(
            f"{len(problems)} lines are {different} different problems. Repetitions count as further responses to a "
            "problem, not as problems of their own, in scores and intervals"
        )
    sentences = [p.id for p in problems if not p.options.tests and len(_WORD.findall(p.answer)) > 2]
    if sentences:
        notes.append(f"answers in words, which only the same words equal: {some(sentences, 5)}")
    return notes
