"""Files of registered problem sets: found in a folder, checked, and read."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..digests import of_text
from ..errors import UserError
from .problem import Problem, Row, read_problems, read_rows
from .problem_set import ProblemSet

# Environment variable with the folder of problem sets, if neither the study nor the command line names one.
ROOT_VARIABLE = "POLICYGRAIN_DATA"


def data_root(root: Path | None) -> Path:
    """The folder of problem sets: ``root``, else POLICYGRAIN_DATA, else the working directory."""
    return root or Path(os.environ.get(ROOT_VARIABLE, "."))


def content_digest(rows: Iterable[Row]) -> str:
    """SHA-256 over problem, answer and tests of all rows in order; any white space counts as one space."""
    texts = []
    for row in rows:
        programs = ("tests", "entry_point", "setup", "signature") if "tests" in row else ()
        texts.append([" ".join(str(row[key]).split()) for key in ("problem", "answer", *programs) if key in row])
    return of_text(json.dumps(texts, ensure_ascii=False, separators=(",", ":")), full=True)


def find(of: ProblemSet, root: Path) -> Path | None:
    """The set's file in ``root`` under any of its names; None if there is none."""
    return next((root / name for name in of.files if (root / name).is_file()), None)


def check(of: ProblemSet, root: Path) -> list[str]:
    """Faults of a set's file, a phrase each: none or unreadable, or `faults_of` its rows."""
    path = find(of, root)
    if path is None:
        return [f"{root / of.files[0]}: no such file"]
    try:
        return [f"{path}: {fault}" for fault in faults_of(of, [row for _, row in read_rows(path)])]
    except UserError as error:
        return [str(error).rstrip(".")]


def faults_of(of: ProblemSet, rows: Sequence[Row]) -> list[str]:
    """Differences of the rows of a file from a set: number of problems, repeated ids, missing columns, content."""
    faults = []
    if len(rows) != of.count:
        faults.append(f"{len(rows)} problems instead of {of.count}")
    if repeated := [identity for identity, n in Counter(str(row.get("id", "")) for row in rows).items() if n > 1]:
        faults.append(f"{len(repeated)} ids occur more than once, for example {repeated[0]!r}")
    for column in filter(None, (of.list_answer, of.absolute_tolerance)):
        if missing := sum(column not in row for row in rows):
            faults.append(f"{missing} rows have no column {column!r}")
    if of.digest and (digest := content_digest(rows)) != of.digest:
        faults.append(
            f"wrong content: digest {digest[:12]}… instead of {of.digest[:12]}…; problems, answers or tests are "
            "changed, missing or in another order"
        )
    return faults


def require(of: ProblemSet, root: Path, where: str) -> Path:
    """The set's file, checked. UserError if it is missing or wrong; ``where`` is the key that names the set."""
    path, faults = find(of, root), check(of, root)
    if path is None or faults:
        move = "Move it away if it is another file. " if path else ""
        raise UserError(f"{where}: {faults[0]}. {move}Fetch it: policygrain data fetch {of.name} --root {root}")
    return path


def load(of: ProblemSet, path: Path, limit: int | None = None) -> list[Problem]:
    """At most ``limit`` problems of a set, with the keys by which answers are compared."""
    return read_problems(path, limit, partial(_complete, of))


def _complete(of: ProblemSet, row: Row) -> Row:
    """``row`` with the keys by which its answer is compared."""
    added: Row = {"source": row.get("source", of.name)}
    if of.text:
        added["text"] = row.get("id") in of.text
    if of.relative_tolerance is not None:
        added["relative_tolerance"] = of.relative_tolerance
    if of.list_answer:
        added["list_answer"] = row.get(of.list_answer)
    if of.absolute_tolerance:
        added["absolute_tolerance"] = tolerance = row.get(of.absolute_tolerance)
        with suppress(ValueError):  # a text that is no number is reported with its line by `read_problems`
            added["absolute_tolerance"] = float(tolerance) if isinstance(tolerance, str) else tolerance
    if (seconds := of.seconds.get(str(row.get("id")))) is not None:
        added["seconds"] = seconds
    return row | added
