"""Problems, and JSON Lines files of problems."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_text, json_lines
from ..grading.grader import DEFAULT, Options, speaks_of_degrees
from ..text import shortened

Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A question with its gold answer; that of a problem with tests is a program, or empty."""

    id: str
    problem: str
    answer: str
    source: str = ""
    steps: str = ""  # a worked solution, if there is one
    options: Options = DEFAULT  # how answers are compared


# Options in a row → their defaults, which are not written: files and their digests do not change with a new option.
OPTIONS = {option.name: option.default for option in fields(Options) if option.name != "degrees"}


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """At most ``limit`` problems of a JSON Lines file. UserError with file and line."""
    return [_problem(row, path, number) for number, row in islice(read_rows(path), limit)]


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """(line number, row) of a JSON Lines file of mappings with `problem` and `answer`. UserError with file and line."""
    number = 0
    for number, row in json_lines(path):
        where = f"{path}, line {number}"
        if re.search("[\ud800-\udfff]", json.dumps(row, ensure_ascii=False)):
            raise UserError(f"{where}: contains half a character (a lone surrogate), which no tokenizer can read.")
        for key in ("problem",) if row.get("tests") else ("problem", "answer"):
            if row.get(key) in (None, ""):
                raise UserError(f"{where}: no {key!r}; the keys are {', '.join(map(repr, row))}.")
        yield number, row
    if not number:
        raise UserError(f"{path}: the dataset is empty.")


def _problem(row: Row, path: Path, number: int) -> Problem:
    where = f"{path}, line {number}"
    texts = {"id": f"{path.stem}-{number:05d}", "source": path.stem, "problem": "", "answer": "", "steps": ""}
    given = {key: default for key, default in (texts | OPTIONS).items() if row.get(key) not in (None, default)}
    values = {key: _value(row[key], default, f"{where}: {key}") for key, default in given.items()}
    if ("tests" in values) != ("entry_point" in values):
        missing = "entry_point" if "tests" in values else "tests"
        raise UserError(f"{where}: no {missing!r}; a problem whose answer is a program has both.")
    texts |= {key: values.pop(key) for key in texts if key in values}
    degrees = "tests" not in values and speaks_of_degrees(texts["problem"])
    return Problem(**texts, options=Options(**values, degrees=degrees))


def _value(value: Any, default: Any, where: str) -> Any:
    right, expected = not isinstance(value, bool | list | dict), "a text or a number"
    if isinstance(value, float):
        right = math.isfinite(value)
    if default is False:
        right, expected = isinstance(value, bool), "true or false"
    elif default is None:
        right, expected = type(value) in (int, float) and 0 <= value < math.inf, "a number of at least 0"
    if not right:
        raise UserError(f"{where}: expected {expected}, got {shortened(repr(value), 80)}.")
    if not isinstance(default, str):
        return value
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) else str(value)  # 0.00001, not 1e-05


def with_repeats(problems: Iterable[Problem]) -> dict[Problem, int]:
    """Each different problem, and how often it occurs: some files repeat a problem for several responses to it."""
    first: dict[tuple[str, str, Options], Problem] = {}
    return Counter(first.setdefault((p.problem, p.answer, p.options), p) for p in problems)


def as_row(problem: Problem) -> Row:
    row = asdict(problem)
    options = row.pop("options")
    return row | {key: options[key] for key, n in OPTIONS.items() if options[key] != n}


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    atomic_text(path, "".join(json.dumps(as_row(problem), ensure_ascii=False) + "\n" for problem in problems))
