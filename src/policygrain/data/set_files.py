"""Checks that a file is the problem set of a registry entry: count, content, columns, ids."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from ..digests import of_text
from ..errors import UserError
from .problem import Problem, Row, read_problems, read_rows
from .registry import Dataset

# Environment variable with the folder of problem sets, if neither the study nor the command line names one.
ROOT_VARIABLE = "POLICYGRAIN_DATA"


def data_root(root: Path | None) -> Path:
    """The folder of problem sets: ``root``, else POLICYGRAIN_DATA, else the working directory."""
    return root or Path(os.environ.get(ROOT_VARIABLE, "."))


def content_digest(problems: Iterable[Sequence[str]]) -> str:
    """SHA-256 over the texts of ``content`` of problems in order, with runs of white space replaced by one space."""
    canonical = [[" ".join(text.split()) for text in texts] for texts in problems]
    return of_text(json.dumps(canonical, ensure_ascii=False, separators=(",", ":")), full=True)


def content(row: Row) -> list[str]:
    """The texts that identify a problem: problem and answer, and the fields for grading a program, if it has tests."""
    programs = ("tests", "entry_point", "setup", "signature") if "tests" in row else ()
    return [str(row[key]) for key in ("problem", "answer", *programs) if key in row]


def find(dataset: Dataset, root: Path) -> Path | None:
    """The set's file in ``root`` under any of its names; None if there is none."""
    return next((root / name for name in (dataset.file, *dataset.aliases) if (root / name).is_file()), None)


def check(dataset: Dataset, root: Path) -> list[str]:
    """Faults of a set's file, a phrase each: wrong number of problems or content, repeated ids, missing columns."""
    path = find(dataset, root)
    if path is None:
        return [f"{root / dataset.file}: no such file"]
    try:
        rows = [row for _, row in read_rows(path)]
    except UserError as error:
        return [str(error).rstrip(".")]
    faults = []
    if len(rows) != dataset.count:
        faults.append(f"{path}: {len(rows)} problems instead of {dataset.count}")
    duplicates = [identity for identity, n in Counter(str(row.get("id", "")) for row in rows).items() if n > 1]
    if duplicates:
        faults.append(f"{path}: {len(duplicates)} ids occur more than once, for example {duplicates[0]!r}")
    for name in dataset.fields.keep:
        missing = sum(name not in row for row in rows)
        if missing:
            faults.append(f"{path}: {missing} rows have no column {name!r}")
    digest = content_digest(map(content, rows))
    if dataset.content is not None and digest != dataset.content:
        faults.append(
            f"{path}: wrong content: digest {digest[:12]}… instead of {dataset.content[:12]}…; problems, answers "
            "or tests are changed, missing, in another order or of another version of the registry"
        )
    return faults


def require(dataset: Dataset, root: Path, where: str) -> Path:
    """The set's file, checked. UserError if it is missing or wrong; ``where`` is the key that names the set."""
    path = find(dataset, root)
    if path is None:
        raise UserError(f"{where}: {root / dataset.file}: no such file. {how_to_get(dataset, root)}")
    if faults := check(dataset, root):
        raise UserError(f"{where}: {faults[0]}. Move it away if it is another file. {how_to_get(dataset, root)}")
    return path


def how_to_get(dataset: Dataset, root: Path) -> str:
    """Instructions for obtaining a missing set."""
    if dataset.home is None:
        return f"No pinned source of {dataset.name} is known; put {dataset.file} there yourself."
    return f"Fetch it: policygrain data fetch {dataset.name} --root {root}"


def complete(dataset: Dataset, row: Row) -> Row:
    """``row`` with the keys by which its answer is compared, from the registry entry."""
    answers = dataset.answers
    added: Row = {"source": row.get("source", dataset.name)}
    if dataset.code is not None and (seconds := dataset.code.slow.get(str(row.get("id")))) is not None:
        added["seconds"] = seconds
    if answers.relative_tolerance is not None:
        added["relative_tolerance"] = answers.relative_tolerance
    if answers.list_answer is not None:
        added["list_answer"] = row.get(answers.list_answer)
    if answers.text:
        added["text"] = row.get("id") in answers.text
    if answers.absolute_tolerance is not None:
        added["absolute_tolerance"] = _number(row.get(answers.absolute_tolerance))
    return {**row, **added}


def _number(value: object) -> object:
    """The number in a text; anything else unchanged, so that `read_problems` reports it with its line."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def load(dataset: Dataset, path: Path, limit: int | None = None) -> list[Problem]:
    """At most ``limit`` problems of a set, with the keys by which answers are compared."""
    return read_problems(path, limit, partial(complete, dataset))
