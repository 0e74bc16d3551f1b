"""Problem, and its JSON Lines files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import UserError
from ..files import atomic_text


@dataclass(frozen=True)
class Problem:
    """A question with its gold answer; ``steps`` is a worked solution where there is one."""

    id: str
    problem: str
    answer: str
    source: str
    steps: str = ""


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """Problems from JSON Lines with `problem` and `answer` (`id` and others optional). Errors name file and line."""
    return list(_read(path, limit))


def _read(path: Path, limit: int | None) -> Iterator[Problem]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the dataset cannot be read: {error}.") from error
    count = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if limit is not None and count >= limit:
            return
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error}). Each line must be one JSON object.") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: expected a JSON object with 'problem' and 'answer', got {type(row).__name__}.")
        for key in ("problem", "answer"):
            if row.get(key) in (None, ""):
                raise UserError(f"{where}: no {key!r}; the keys are {', '.join(map(repr, row))}.")
        count += 1
        identity = str(row.get("id", f"{path.stem}-{number:05d}"))
        yield Problem(
            identity,
            str(row["problem"]),
            str(row["answer"]),
            str(row.get("source", path.stem)),
            str(row.get("steps", "")),
        )
    if count == 0:
        raise UserError(f"{path}: the dataset is empty.")


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write JSON Lines, atomically."""
    atomic_text(path, "".join(json.dumps(asdict(p), ensure_ascii=False) + "\n" for p in problems))
