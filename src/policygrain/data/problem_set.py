"""What is known of a public problem set, and the decorator of its function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .problem import Problem

Rows = Iterable[Any]  # rows of the published files, in order: mappings from columns to values
Function = Callable[[Rows], Iterator[Problem]]


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """A public problem set: where it is published, and how responses are sampled and compared with its answers."""

    name: str
    problems: Function  # from the rows of the published files
    count: int  # of problems
    digest: str | None  # of problems, answers and tests (`set_files.content_digest`); None: not known
    # On GitHub: OWNER/NAME/COMMIT/PATH of a file, and Git's blob id of its content.
    github: str = ""
    blob: str = ""
    # On the Hugging Face hub: OWNER/NAME/COMMIT of a dataset, and its files in the order of the rows.
    hub: str = ""
    hub_files: Sequence[str] = ()
    # Names of the file in a folder of problem sets, of which the first is written. Default: NAME.jsonl.
    files: Sequence[str] = ()
    # Sampling of a benchmark as published; a training set has no n.
    n: int | None = None
    temperature: float = 0.0  # 0: greedy
    # Comparison of answers.
    relative_tolerance: float | None = None  # as a share of the gold answer
    absolute_tolerance: str = ""  # column with the tolerance of a row, null for none
    list_answer: str = ""  # column that says whether a row's answer is a list, all of which is required
    text: Sequence[str] = ()  # ids of gold answers that cannot be read as mathematics and are compared as text
    seconds: Mapping[str, float] = field(default_factory=dict)  # id → processor time, where a solution is slow


def problem_set(**known: Any) -> Callable[[Function], ProblemSet]:
    """Decorator that makes a function a problem set of its name; ``known`` are the other fields of `ProblemSet`."""

    def made(function: Function) -> ProblemSet:
        name = function.__name__
        return ProblemSet(name=name, problems=function, **{"files": [f"{name}.jsonl"]} | known)

    return made
