"""Problems, and JSON Lines files of problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_text, json_lines

Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A question with its gold answer; ``steps`` is a worked solution, if there is one.

    The answer of a problem with tests is a solution, empty if there is none.

    The other fields say how answers are compared, see `grading.Options`.
    """

    id: str
    problem: str
    answer: str
    source: str
    steps: str = ""
    list_answer: bool = False
    relative_tolerance: float | None = None
    absolute_tolerance: float | None = None
    text: bool = False
    tests: str = ""
    entry_point: str = ""
    setup: str = ""
    signature: str = ""
    seconds: float | None = None


PROGRAMS = ("tests", "entry_point", "setup", "signature")
DEFAULTS = {field.name: field.default for field in fields(Problem)}


def read_problems(
    path: Path, limit: int | None = None, complete: Callable[[Row], Row] = lambda row: row
) -> list[Problem]:
    """At most ``limit`` problems of a JSON Lines file with `problem` and `answer` (`id` and others are optional).

    ``complete`` can add keys to each row that are the same for the whole set. UserError with file and line.
    """
    rows = islice(read_rows(path), limit)
    return [_problem(complete(row), path, number) for number, row in rows]


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """(line number, row) of a JSON Lines file of mappings with `problem` and `answer`. UserError with file and line."""
    number = 0
    for number, row in json_lines(path):
        where = f"{path}, line {number}"
        try:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"{where}: half a character (a lone surrogate), which no tokenizer reads.") from error
        for key in ("problem",) if row.get("tests") else ("problem", "answer"):
            if row.get(key) in (None, ""):
                raise UserError(f"{where}: no {key!r}; the keys are {', '.join(map(repr, row))}.")
        yield number, row
    if not number:
        raise UserError(f"{path}: the dataset is empty.")


def _problem(row: Row, path: Path, number: int) -> Problem:
    where = f"{path}, line {number}"
    switches: dict[str, bool] = {}
    for key in ("list_answer", "text"):
        switches[key] = row.get(key) or False
        if not isinstance(switches[key], bool):
            raise UserError(f"{where}: {key}: true or false is expected, got {row[key]!r}.")
    tolerances: dict[str, Any] = {}
    for key in ("relative_tolerance", "absolute_tolerance", "seconds"):
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise UserError(f"{where}: {key}: a number from 0 up is expected, got {value!r}.")
        tolerances[key] = value
    programs: dict[str, Any] = {key: str(row.get(key, "")) for key in PROGRAMS}
    if bool(programs["tests"]) != bool(programs["entry_point"]):
        missing = "entry_point" if programs["tests"] else "tests"
        raise UserError(f"{where}: no {missing!r}; a problem whose answer is a program has both.")
    return Problem(
        str(row.get("id", f"{path.stem}-{number:05d}")),
        str(row["problem"]),
        str(row.get("answer") or "") if programs["tests"] else str(row["answer"]),
        str(row.get("source", path.stem)),
        str(row.get("steps", "")),
        list_answer=switches["list_answer"],
        text=switches["text"],
        **tolerances,
        **programs,
    )


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write JSON Lines, atomically.

    Defaults are not written, except `steps`, so that files, and their digests, do not change with a new field.
    """
    rows = ({k: v for k, v in asdict(p).items() if k == "steps" or v != DEFAULTS[k]} for p in problems)
    atomic_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
