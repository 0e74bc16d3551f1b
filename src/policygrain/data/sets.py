"""Public problem sets: what each is, its file in a folder, and how it is sampled."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import digests
from ..errors import UserError, did_you_mean
from .problem import Problem, Row, read_problems, read_rows

if TYPE_CHECKING:
    from ..study.schema import Benchmark, Sampling, Study

# Environment variable with the folder of problem sets, if neither the study nor the command line names one.
ROOT_VARIABLE = "POLICYGRAIN_DATA"
Rows = Iterable[Any]
Function = Callable[[Rows], Iterator[Problem]]


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """A public problem set: where it is published, how responses are sampled and compared with its answers."""

    name: str
    problems: Function  # from the rows of the published file
    count: int  # of problems
    digest: str  # of problems, answers and tests (`content_digest`)
    github: str  # OWNER/NAME/COMMIT/PATH of the published file
    blob: str  # Git's blob id of its content
    files: Sequence[str]  # its names in a folder of problem sets, of which the first is written
    # Sampling of a benchmark as published; None: a training set. Temperature 0 is greedy.
    n: int | None = 1
    temperature: float = 0.0
    # From a row of the file: the options with which its answer is compared, other than the default ones.
    compared: Callable[[Row], Row] = lambda row: {}


SETS: dict[str, ProblemSet] = {}  # by name, which is that of its function


def problem_set(**known: Any) -> Callable[[Function], ProblemSet]:
    """Decorator that registers a function as a problem set of its name; ``known``: other fields of `ProblemSet`."""

    def registered(function: Function) -> ProblemSet:
        name = function.__name__
        return SETS.setdefault(name, ProblemSet(name=name, problems=function, **{"files": [f"{name}.jsonl"]} | known))

    return registered


def find_set(name: str) -> ProblemSet:
    """The set called ``name``. UserError with similar names if there is none."""
    if name not in SETS:
        raise UserError(f"{name!r} is no registered problem set.{did_you_mean(name, SETS)}{how_to_read(name)}")
    return SETS[name]


def how_to_read(name: str) -> str:
    """Advice for a file of problems that is not in JSON Lines; "" for other names."""
    if not name.endswith((".parquet", ".json", ".csv", ".tsv", ".arrow")):
        return ""
    return (
        " Files of your own are read as JSON Lines (.jsonl) with `problem` and `answer` in each line; with pandas: "
        "pandas.read_parquet(FILE).rename(columns={...}).to_json(OUT, orient='records', lines=True)."
    )


# ---- files ----------------------------------------------------------------------------------------------------------


def data_root(root: Path | None) -> Path:
    """The folder of problem sets: ``root``, else POLICYGRAIN_DATA, else the working directory."""
    return root or Path(os.environ.get(ROOT_VARIABLE, "."))


def content_digest(rows: Iterable[Row]) -> str:
    """SHA-256 over problem, answer and tests of all rows in order; any white space counts as one space."""
    texts = []
    for row in rows:
        programs = ("tests", "entry_point", "setup", "signature") if "tests" in row else ()
        texts.append([" ".join(str(row[key]).split()) for key in ("problem", "answer", *programs) if key in row])
    return digests.of_text(json.dumps(texts, ensure_ascii=False, separators=(",", ":")), full=True)


def find_file(of: ProblemSet, root: Path) -> Path | None:
    """The set's file in ``root`` under any of its names; None if there is none."""
    return next((root / name for name in of.files if (root / name).is_file()), None)


def check_file(of: ProblemSet, root: Path) -> list[str]:
    """Faults of a set's file, a phrase each: none or unreadable, or `faults_of` its rows."""
    path = find_file(of, root)
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
    try:
        list(map(of.compared, rows))
    except (KeyError, TypeError, ValueError) as error:
        faults.append(f"a column that says how answers are compared is missing or wrong: {error}")
    if (digest := content_digest(rows)) != of.digest:
        faults.append(
            f"wrong content: digest {digest[:12]}… instead of {of.digest[:12]}…; problems, answers or tests are "
            "changed, missing or in another order"
        )
    return faults


def load_set(of: ProblemSet, root: Path, where: str, limit: int | None = None) -> list[Problem]:
    """At most ``limit`` problems of a set. UserError if its file is missing or wrong; ``where`` names the set's key."""
    path, faults = find_file(of, root), check_file(of, root)
    if path is None or faults:
        move = "Move it away if it is another file. " if path else ""
        raise UserError(f"{where}: {faults[0]}. {move}Fetch it: policygrain data fetch {of.name} --root {root}")
    return read_problems(path, limit, lambda row: {"source": of.name} | row | of.compared(row))


# ---- sampling -------------------------------------------------------------------------------------------------------


def published_sampling(source: str) -> dict[str, Any]:
    """The sampling parameters with which a benchmark is published; empty for other sources."""
    of = SETS.get(source)
    return {"n": of.n, "temperature": of.temperature, "top_p": 1.0} if of and of.n else {}


def sampling_of(study: Study, benchmark: Benchmark) -> Sampling:
    """Sampling parameters of responses to ``benchmark``.

    Its own `sampling` comes first, then the published one if `evaluation.registered_sampling`, then the study's.
    """
    if benchmark.sampling is not None:
        return benchmark.sampling
    published = published_sampling(benchmark.source) if study.evaluation.registered_sampling else {}
    return study.evaluation.sampling.model_copy(update=published)
