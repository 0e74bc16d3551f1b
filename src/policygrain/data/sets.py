"""The public problem sets of `sets.yaml`: their files in a folder, and how they are sampled."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .. import digests
from ..errors import UserError, did_you_mean
from .problem import Problem, Row, read_problems, read_rows

if TYPE_CHECKING:
    from ..study.schema import Benchmark, Sampling, Study

ROOT_VARIABLE = "POLICYGRAIN_DATA"  # the folder of problem sets, if neither study nor command line names one


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """A public problem set; `sets.yaml` explains the keys."""

    name: str
    file: str
    github: str
    blob: str
    digest: str
    count: int
    n: int | None = 1
    temperature: float = 0.0
    compared: Sequence[Row] = ()

    def options(self, position: int) -> Row:
        """Further options with which the answer of the problem at ``position`` is compared."""
        applying = [options for options in self.compared if position in options.get("at", [position])]
        return {key: value for options in applying for key, value in options.items() if key != "at"}


_ENTRIES = yaml.safe_load(resources.files(__package__).joinpath("sets.yaml").read_text("utf-8"))
SETS = {name: ProblemSet(**{"name": name, "file": f"{name}.jsonl"} | entry) for name, entry in _ENTRIES.items()}


def find_set(name: str) -> ProblemSet:
    if name not in SETS:
        raise UserError(f"{name!r} is neither a registered problem set nor a .jsonl file.{did_you_mean(name, SETS)}")
    return SETS[name]


def data_root(root: Path | None) -> Path:
    """The folder of problem sets: ``root``, else POLICYGRAIN_DATA, else the working directory."""
    return root or Path(os.environ.get(ROOT_VARIABLE, "."))


def content_digest(rows: Iterable[Row]) -> str:
    """SHA-256 over problem, answer and tests of all rows in order; any white space counts as one space."""
    texts = []
    for row in rows:
        programs = ("tests", "entry_point", "setup", "signature") if "tests" in row else ()
        texts.append([" ".join(str(row[key]).split()) for key in ("problem", "answer", *programs) if key in row])
    return digests.of_text(json.dumps(texts, ensure_ascii=False, separators=(",", ":")), digests.FULL)


def check_file(of: ProblemSet, root: Path) -> list[str]:
    """Faults of a set's file, a phrase each: none or unreadable, or `faults_of` its rows."""
    path = root / of.file
    if not path.is_file():
        return [f"{path}: no such file"]
    try:
        return [f"{path}: {fault}" for fault in faults_of(of, [row for _, row in read_rows(path)])]
    except UserError as error:
        return [str(error).rstrip(".")]


def faults_of(of: ProblemSet, rows: Sequence[Row]) -> list[str]:
    """Differences of the rows of a file from a set: number of problems, repeated ids, content."""
    faults = []
    if len(rows) != of.count:
        faults.append(f"{len(rows)} problems instead of {of.count}")
    if repeated := [
        identity for identity, n in Counter(str(row["id"]) for row in rows if "id" in row).items() if n > 1
    ]:
        faults.append(f"{len(repeated)} ids occur more than once, for example {repeated[0]!r}")
    if (digest := content_digest(rows)) != of.digest:
        faults.append(
            f"wrong content: digest {digest[:12]}… instead of {of.digest[:12]}…; problems, answers or tests are "
            "changed, missing or in another order"
        )
    return faults


def load_set(of: ProblemSet, root: Path, where: str, limit: int | None = None) -> list[Problem]:
    """At most ``limit`` problems of a set. UserError, which begins with ``where``, if its file is missing or wrong."""
    if faults := check_file(of, root):
        move = "Move it away if it is another file. " if (root / of.file).exists() else ""
        raise UserError(f"{where}: {faults[0]}. {move}Fetch it: policygrain data fetch {of.name} --root {root}")
    problems = read_problems(root / of.file, limit)
    return [replace(p, options=replace(p.options, **of.options(i))) for i, p in enumerate(problems)]


def published_sampling(source: str) -> dict[str, Any]:
    """The sampling parameters with which a benchmark is published; empty for other sources."""
    of = SETS.get(source)
    return {"n": of.n, "temperature": of.temperature, "top_p": 1.0} if of and of.n else {}


def sampling_of(study: Study, benchmark: Benchmark) -> Sampling:
    """A benchmark's own `sampling`, else the published one if `evaluation.registered_sampling`, else the study's."""
    if benchmark.sampling is not None:
        return benchmark.sampling
    published = published_sampling(benchmark.source) if study.evaluation.registered_sampling else {}
    return study.evaluation.sampling.model_copy(update=published)
