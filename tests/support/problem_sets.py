"""A made-up problem set, a study with given sources, and the names of the recorded sets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from policygrain.data.fetch import blob_id
from policygrain.data.problem import Problem
from policygrain.data.sets import SETS, ProblemSet, Rows, content_digest, find_file
from policygrain.files import read_json_lines
from policygrain.study import parse_study

from .small import SMALL

# The seven of the papers' table, and what else the folder of real sets holds.
SEVEN = ("aime24", "aime25", "amc23", "math500", "omni_math_rule", "olympiadbench", "minerva")
RECORDED = (*SEVEN, "aime26", "amc12_83", "gsm8k", "gsm8k_train", "math_train", "dapo_math_17k")
CODE = ("humaneval", "humaneval_plus", "mbpp_plus")

ROWS = [{"n": i, "question": f"How much is {i} and {i}?", "answer": f"{2 * i}"} for i in range(300)]
SOURCE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def made_up(source: bytes = SOURCE, **changes: Any) -> ProblemSet:
    """A set that lives in a file with these bytes."""

    def problems(rows: Rows) -> Iterator[Problem]:
        for row in rows:
            yield Problem(f"made-up-{row['n']}", row["question"], row["answer"])

    known: dict[str, Any] = {
        "github": f"some/where/{'0' * 40}/data/a file.jsonl",
        "blob": blob_id(source),
        "digest": content_digest({"problem": row["question"], "answer": row["answer"]} for row in ROWS),
        "count": len(ROWS),
        "files": ["made_up.jsonl"],
    }
    return ProblemSet(name="made_up", problems=problems, **known | changes)


def study_with(train: list[str], benchmarks: list[dict[str, object]], root: Path) -> Any:
    data = {**SMALL["data"], "train": train, "root": str(root)}
    model = {**SMALL["model"], "warm_start": {"steps": 0}}
    evaluation = {**SMALL["evaluation"], "benchmarks": benchmarks}
    return parse_study({**SMALL, "data": data, "model": model, "evaluation": evaluation}, Path("study.yaml"))


def raw(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a set's file."""
    return read_json_lines(find_file(SETS[name], folder))
